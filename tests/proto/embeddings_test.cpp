// /v1/embeddings: bodies, what is done to hidden states, and the two encodings.
#include "proto/embeddings.h"

#include <gtest/gtest.h>

#include "proto/json/json.h"

namespace lorad::proto::embeddings_test {
namespace {

constexpr uint32_t kVocab = 1000, kHidden = 8;

EmbeddingsRequest parsed(const std::string& fields) {
    Result<EmbeddingsRequest> request = parse_embeddings_request("{" + fields + "}", kVocab, kHidden);
    EXPECT_TRUE(request.ok()) << fields << ": " << request.error().message;
    return request.ok() ? std::move(*request) : EmbeddingsRequest();
}
Error refused(const std::string& fields) {
    Result<EmbeddingsRequest> request = parse_embeddings_request("{" + fields + "}", kVocab, kHidden);
    EXPECT_FALSE(request.ok()) << fields;
    return request.ok() ? Error() : request.error();
}

TEST(EmbeddingsRequest, InputsAreATextIdsOrListsOfEither) {
    EmbeddingsRequest text = parsed(R"("input":"a","model":"m","user":"me","adapter":"x")");
    ASSERT_EQ(text.generate.prompts.size(), 1u);
    EXPECT_EQ(text.generate.prompts[0].text, "a");
    EXPECT_EQ(text.generate.model, "m");
    EXPECT_EQ(text.generate.user, "me");
    EXPECT_EQ(text.generate.adapters->at(0).name, "x");
    EXPECT_TRUE(text.generate.embed);
    EXPECT_TRUE(text.normalized && !text.as_base64 && !text.n_dimensions);
    EXPECT_EQ(parsed(R"("input":["a","b"])").generate.prompts[1].text, "b");
    EXPECT_EQ(parsed(R"("input":[1,2])").generate.prompts[0].ids, (std::vector<TokenId>{1, 2}));
    EXPECT_EQ(parsed(R"("input":[[1],[2,3]])").generate.prompts[1].ids, (std::vector<TokenId>{2, 3}));
    std::string many = "[\"a\"";
    for (int i = 1; i < 2048; ++i) many += ",\"a\"";
    EXPECT_EQ(parsed("\"input\":" + many + "]").generate.prompts.size(), 2048u);
    EXPECT_EQ(refused("\"input\":" + many + ",\"a\"]").param, "input");
}

TEST(EmbeddingsRequest, RefusalsNameTheField) {
    const std::pair<const char*, const char*> cases[] = {
        {R"("model":"x")", "input"},
        {R"("input":"")", "input"},
        {R"("input":[])", "input"},
        {R"("input":["a",""])", "input[1]"},
        {R"("input":["a",3])", "input[1]"},
        {R"("input":[[]])", "input[0]"},
        {R"("input":[1,1000])", "input[1]"},
        {R"("input":{"a":1})", "input"},
        {R"("input":"a","encoding_format":"bytes")", "encoding_format"},
        {R"("input":"a","dimensions":0)", "dimensions"},
        {R"("input":"a","dimensions":9)", "dimensions"},
        {R"("input":"a","normalize":1)", "normalize"},
        {R"("input":"a","user":7)", "user"},
    };
    for (const auto& [fields, param] : cases) EXPECT_EQ(refused(fields).param, param) << fields;
    EXPECT_EQ(refused(R"("input":"a","pooling":"mean")").code, ErrorCode::kUnsupportedParameter);
    EXPECT_EQ(parsed(R"("input":"a","truncate_prompt_tokens":3)").generate.n_prompt_max, 3);
    EXPECT_EQ(refused(R"("messages":[{"role":"user","content":"a"}])").param, "messages");
    EXPECT_EQ(parsed(R"("input":"a","nonsense":1)").generate.ignored_fields, std::vector<std::string>{"nonsense"});
}

// One id outside of the vocabulary says that the others are another tokenizer's as well.
TEST(EmbeddingsRequest, IdsOfAnotherVocabularyAreRefusedWithTheRangeAndAWayOut) {
    Error error = refused(R"("input":[[1,2],[3,1000,5]])");
    EXPECT_EQ(error.param, "input[1][1]");
    EXPECT_EQ(error.code, ErrorCode::kInvalidRequest);
    EXPECT_TRUE(error.message.starts_with("input[1][1]: expected integer from 0 to 999, found 1000")) << error.message;
    EXPECT_NE(error.message.find("check_embedding_ctx_length=False"), std::string::npos) << error.message;
    EXPECT_EQ(refused(R"("input":[1,true])").message.find("check_embedding"), std::string::npos) << "no id at all";
}

TEST(Embeddings, AreCutThenHaveTheLengthOne) {
    const std::vector<float> hidden = {3.0f, 4.0f, 12.0f};
    EXPECT_EQ(shown_embedding(hidden, parsed(R"("input":"a","dimensions":2)")), (std::vector<float>{0.6f, 0.8f}));
    std::vector<float> whole = shown_embedding(hidden, parsed(R"("input":"a")"));
    EXPECT_FLOAT_EQ(whole[2], 12.0f / 13.0f);
    EXPECT_EQ(shown_embedding(hidden, parsed(R"("input":"a","normalize":false)")), hidden);
    EXPECT_EQ(shown_embedding(std::vector<float>{0.0f}, parsed(R"("input":"a")")), (std::vector<float>{0.0f}));
}

TEST(Embeddings, Base64HoldsTheFloatsInLittleEndian) {
    EXPECT_EQ(base64_floats({}), "");
    EXPECT_EQ(base64_floats(std::vector<float>{1.0f}), "AACAPw==");
    EXPECT_EQ(base64_floats(std::vector<float>{1.0f, -2.5f}), "AACAPwAAIMA=");
    EXPECT_EQ(base64_floats(std::vector<float>{1.0f, -2.5f, 0.1f}), "AACAPwAAIMDNzMw9");
}

TEST(Embeddings, AnswersHaveOpenAisShape) {
    EmbeddingsAnswer answer{"m", "abc", {{0.5f, -1.0f}, {0.25f, 0.0f}}, 7};
    EXPECT_EQ(embeddings_response(answer, false),
              R"({"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5,-1]},)"
              R"({"object":"embedding","index":1,"embedding":[0.25,0]}],"model":"m","adapter_generation":"abc",)"
              R"("usage":{"prompt_tokens":7,"total_tokens":7}})");
    EXPECT_NE(embeddings_response(answer, true).find(R"("embedding":"AAAAPwAAgL8=")"), std::string::npos);
}

}  // namespace
}  // namespace lorad::proto::embeddings_test
