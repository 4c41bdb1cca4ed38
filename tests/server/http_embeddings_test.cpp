// /v1/embeddings over real sockets, with a model of arithmetic.
#include "proto/embeddings.h"
#include "tests/server/http_fixture.h"

namespace lorad::server::http_embeddings_test {
namespace {

class EmbeddingsTest : public HttpTest {
  protected:
    std::vector<std::vector<float>> embeddings(const std::string& body) {
        Answer answer = post("/v1/embeddings", body);
        EXPECT_EQ(answer.status, 200) << answer.body;
        Result<JsonDocument> document = parse_json(answer.body);
        std::vector<std::vector<float>> out;
        if (!document.ok() || answer.status != 200) return out;
        for (const JsonValue& entry : *document->root().find("data")->as_array()) {
            EXPECT_EQ(*entry.int_or("index", -1), int64_t(out.size()));
            out.emplace_back();
            for (const JsonValue& value : *entry.find("embedding")->as_array())
                out.back().push_back(float(*value.as_number()));
        }
        return out;
    }
    static std::vector<float> expected(const std::vector<TokenId>& prompt, uint32_t slot = kNoAdapterSlot) {
        return proto::shown_embedding(fake_hidden(prompt, slot), {});
    }
};

TEST_F(EmbeddingsTest, AreHiddenStatesOfEachInputsLastToken) {
    EXPECT_EQ(embeddings(R"({"input":"hi"})"), std::vector<std::vector<float>>{expected(bytes_of("hi"))});
    auto several = embeddings(R"({"input":["hi","yo","hi"]})");
    ASSERT_EQ(several.size(), 3u);
    EXPECT_EQ(several[1], expected(bytes_of("yo")));
    EXPECT_EQ(several[2], several[0]);
    EXPECT_EQ(embeddings(R"({"input":[[5,6],[7]]})")[1], expected({7}));
    Answer usage = post("/v1/embeddings", R"({"input":["hi","yoo"]})");
    EXPECT_NE(usage.body.find(R"("usage":{"prompt_tokens":5,"total_tokens":5})"), std::string::npos);
    EXPECT_EQ(metric("vllm:generation_tokens_total{model_name=\"base\"} "), 0.0) << "nothing is generated";
}

TEST_F(EmbeddingsTest, MoreInputsThanThereArePlacesAreTakenInTurns) {
    std::string inputs;
    for (int i = 0; i < 300; ++i) inputs += (i ? ",[" : "[") + std::to_string(i) + "," + std::to_string(i % 7) + "]";
    auto all = embeddings("{\"input\":[" + inputs + "]}");
    ASSERT_EQ(all.size(), 300u);
    for (int i = 0; i < 300; ++i) EXPECT_EQ(all[size_t(i)], expected({i, i % 7}));
    EXPECT_EQ(runner.n_broken(), 0u);
}

TEST_F(EmbeddingsTest, TheModelFieldNamesTheAdapter) {
    load_pirate();
    Answer answer = post("/v1/embeddings", R"({"model":"pirate","input":"hi"})");
    EXPECT_NE(answer.body.find("\"adapter_generation\":\""), std::string::npos);
    EXPECT_EQ(embeddings(R"({"model":"pirate","input":"hi"})")[0], expected(bytes_of("hi"), slot_of("pirate")));
    EXPECT_NE(embeddings(R"({"model":"base","input":"hi"})")[0], expected(bytes_of("hi"), slot_of("pirate")));
    EXPECT_EQ(post("/v1/embeddings", R"({"model":"nobody","input":"hi"})").code, "model_not_found");
}

TEST_F(EmbeddingsTest, AnInputMayFillTheContextAndNoMore) {
    std::string ids = "1";
    for (uint32_t i = 1; i < kPositionsMax; ++i) ids += ",1";
    EXPECT_EQ(embeddings("{\"input\":[" + ids + "]}").size(), 1u);
    Answer longer = post("/v1/embeddings", "{\"input\":[[2],[" + ids + ",1]]}");
    EXPECT_EQ(longer.code, "context_length_exceeded");
    EXPECT_EQ(longer.param, "input");
}

TEST_F(EmbeddingsTest, CachedPrefixesGiveTheSameEmbedding) {
    std::string ids = "3";
    for (int i = 1; i < 200; ++i) ids += "," + std::to_string(i);
    auto first = embeddings("{\"input\":[" + ids + "]}");
    const double hits = metric("vllm:prefix_cache_hits_total{model_name=\"base\"} ");
    EXPECT_EQ(embeddings("{\"input\":[" + ids + "]}"), first);
    EXPECT_GT(metric("vllm:prefix_cache_hits_total{model_name=\"base\"} "), hits);
}

TEST_F(EmbeddingsTest, WhatIsNotFiniteIsAnError) {
    runner.not_finite_token_ = TokenId('!');
    EXPECT_EQ(post("/v1/embeddings", R"({"input":["a","b!"]})").status, 500);
    EXPECT_EQ(embeddings(R"({"input":"a"})").size(), 1u);
}

}  // namespace
}  // namespace lorad::server::http_embeddings_test
