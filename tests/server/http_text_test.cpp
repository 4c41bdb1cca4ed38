// Prompts and tokens over HTTP, without generating: /v1/.../render, /tokenize, /detokenize, /version.
#include "proto/base/version.h"
#include "tests/server/http_fixture.h"

namespace lorad::server::http_text_test {
namespace {

class TextRoutesTest : public HttpTest {
  protected:
    JsonDocument ask(const std::string& path, const std::string& body) {
        Answer answer = post(path, body);
        EXPECT_EQ(answer.status, 200) << answer.body;
        Result<JsonDocument> document = parse_json(answer.body);
        EXPECT_TRUE(document.ok());
        return std::move(*document);
    }
    static std::vector<int64_t> ids(const JsonValue& object, std::string_view name) {
        std::vector<int64_t> out;
        for (const JsonValue& id : *object.find(name)->as_array()) out.push_back(*id.as_int());
        return out;
    }
};

TEST_F(TextRoutesTest, ARenderedChatIsWhatTheModelReads) {
    const std::string fields =
        R"("messages":[{"role":"user","content":"hi"},{"role":"user","content":"yo"}],"max_tokens":3)";
    JsonDocument rendered = ask("/v1/chat/completions/render", "{" + fields + "}");
    JsonValue root = rendered.root();
    EXPECT_EQ(*root.string_or("prompt", ""), "hiyo");
    EXPECT_EQ(ids(root, "token_ids"), (std::vector<int64_t>{'h', 'i', 'y', 'o'}));
    EXPECT_EQ(*root.int_or("count", 0), 4);
    EXPECT_EQ(*root.int_or("max_tokens", 0), 3);
    JsonDocument chat = ask("/v1/chat/completions", "{" + fields + R"(,"return_token_ids":true})");
    EXPECT_EQ(ids(chat.root(), "prompt_token_ids"), ids(root, "token_ids"));
}

TEST_F(TextRoutesTest, RenderingComputesNothingAndRefusesWhatGeneratingWould) {
    ask("/v1/chat/completions/render", R"({"messages":[{"role":"user","content":"hi"}]})");
    EXPECT_EQ(runner.n_steps(), 0u);
    Answer model =
        post("/v1/chat/completions/render", R"({"model":"nobody","messages":[{"role":"user","content":"hi"}]})");
    EXPECT_EQ(model.status, 404);
    EXPECT_EQ(model.code, "model_not_found");
    Answer qualified = post("/v1/completions/render", R"({"model":"base:nobody","prompt":"a"})");
    EXPECT_EQ(qualified.code, "adapter_not_found");
    Answer listed = post("/v1/completions/render", R"({"adapters":[{"name":"x"}],"prompt":"a"})");
    EXPECT_EQ(listed.code, "adapter_not_found");
    Answer longer = post("/v1/completions/render", R"({"prompt":"a","max_tokens":5000})");
    EXPECT_EQ(longer.code, "context_length_exceeded");
    EXPECT_EQ(post("/v1/chat/completions/render", R"({"messages":[]})").param, "messages");
}

TEST_F(TextRoutesTest, RenderedCompletionsAreAListInTheOrderOfThePrompts) {
    JsonDocument rendered = ask("/v1/completions/render", R"({"prompt":[[104,105],[106]]})");
    auto prompts = *rendered.root().as_array();
    ASSERT_EQ(prompts.size(), 2u);
    EXPECT_EQ(*prompts[0].string_or("prompt", ""), "hi") << "ids are shown as text";
    EXPECT_EQ(ids(prompts[1], "token_ids"), (std::vector<int64_t>{106}));
    EXPECT_EQ(*prompts[1].int_or("max_tokens", 0), 16);
    EXPECT_EQ(post("/v1/completions/render", R"({"prompt":["ab",""]})").param, "prompt[1]");
}

TEST_F(TextRoutesTest, TokenizeHasVllmsShapeForTextsAndChats) {
    JsonDocument text = ask("/tokenize", R"({"prompt":"abc"})");
    EXPECT_EQ(ids(text.root(), "tokens"), (std::vector<int64_t>{'a', 'b', 'c'}));
    EXPECT_EQ(*text.root().int_or("count", 0), 3);
    EXPECT_EQ(*text.root().int_or("max_model_len", 0), int64_t(kPositionsMax));
    EXPECT_TRUE(text.root().has("token_strs"));
    EXPECT_FALSE(text.root().find("token_strs"));
    JsonDocument named = ask("/tokenize", R"({"prompt":"ab","return_token_strs":true})");
    EXPECT_EQ(*named.root().find("token_strs")->as_array()->at(1).as_string(), "<98>");
    JsonDocument chat = ask("/tokenize", R"({"messages":[{"role":"user","content":"hi"}]})");
    EXPECT_EQ(ids(chat.root(), "tokens"), (std::vector<int64_t>{'h', 'i'}));
    EXPECT_EQ(ids(ask("/tokenize", R"({"prompt":""})").root(), "tokens").size(), 0u);
    EXPECT_EQ(post("/tokenize", R"({"prompt":[1,2]})").param, "prompt");
    EXPECT_EQ(post("/tokenize", R"({})").param, "prompt");
    EXPECT_EQ(post("/tokenize", R"({"prompt":"a","model":"nobody"})").status, 404);
}

TEST_F(TextRoutesTest, DetokenizeIsTheWayBack) {
    JsonDocument text = ask("/detokenize", R"({"tokens":[104,105]})");
    EXPECT_EQ(*text.root().string_or("prompt", ""), "hi");
    EXPECT_EQ(*ask("/detokenize", R"({"tokens":[]})").root().string_or("prompt", "x"), "");
    EXPECT_EQ(post("/detokenize", R"({"tokens":[997]})").param, "tokens[0]");
    EXPECT_EQ(post("/detokenize", R"({"tokens":"hi"})").param, "tokens");
    EXPECT_EQ(post("/detokenize", R"({})").param, "tokens");
    auto unknown = client().Post("/detokenize", R"({"tokens":[104],"nonsense":1})", "application/json");
    EXPECT_EQ(unknown->get_header_value("x-lorad-ignored-fields"), "nonsense");
}

TEST_F(TextRoutesTest, VersionIsKnownBeforeTheModelIsThere) {
    gate = nullptr;
    Answer answer = get("/version");
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, std::string("{\"version\":\"") + version() + "\"}");
    gate = &context;
}

}  // namespace
}  // namespace lorad::server::http_text_test
