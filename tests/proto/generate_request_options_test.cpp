// Parameters of one of the two kinds, and what excludes what.
#include <gtest/gtest.h>

#include "proto/generate/generate_request.h"

namespace lorad::proto::generate_request_options_test {
namespace {

constexpr uint32_t kVocab = 1000;

Result<GenerateRequest> chat(const std::string& messages, const std::string& more = "") {
    return parse_generate_request(R"({"messages":)" + messages + (more.empty() ? "" : "," + more) + "}", ApiKind::kChat,
                                  kVocab);
}

const std::string kHi = R"([{"role":"user","content":"hi"}])";

TEST(GenerateOptions, ChatsHaveTheirOwnParameters) {
    auto request = chat(R"([{"role":"user","content":"q"},{"role":"assistant","content":"The answer"}])",
                        R"("logprobs":true,"top_logprobs":20,"continue_final_message":true,"documents":[{"text":"d"}],
        "chat_template_kwargs":{"enable_thinking":false})");
    ASSERT_TRUE(request.ok()) << request.error().message;
    EXPECT_EQ(request->n_logprobs, 20u);
    EXPECT_FALSE(request->add_generation_prompt);
    EXPECT_EQ(request->continued_text, "The answer");
    EXPECT_EQ(request->documents_json, R"([{"text":"d"}])");
    EXPECT_EQ(request->template_kwargs_json, R"({"enable_thinking":false})");
    EXPECT_TRUE(request->ignored_fields.empty());
    for (auto [field, param] : std::vector<std::pair<std::string, std::string>>{
             {R"("top_logprobs":2)", "top_logprobs"},
             {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
             {R"("logprobs":3)", "logprobs"},
             {R"("continue_final_message":true,"add_generation_prompt":true)", "continue_final_message"},
             {R"("chat_template_kwargs":{"messages":[]})", "chat_template_kwargs.messages"},
             {R"("chat_template_kwargs":[])", "chat_template_kwargs"},
             {R"("documents":["d"])", "documents[0]"}}) {
        auto refused = chat(kHi, field);
        ASSERT_FALSE(refused.ok()) << field;
        EXPECT_EQ(refused.error().param, param) << refused.error().message;
        EXPECT_EQ(refused.error().code, ErrorCode::kInvalidRequest) << field;
    }
    EXPECT_EQ(chat(kHi, R"("echo":true)").error().code, ErrorCode::kUnsupportedParameter);
    EXPECT_EQ(chat(kHi, R"("best_of":2)").error().code, ErrorCode::kUnsupportedParameter);
}

TEST(GenerateOptions, ArgumentsOfToolCallsReachTheTemplateAsObjects) {
    auto request = chat(
        R"([{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":
        {"name":"f","arguments":"{\"a\": 1.50}"}},{"function":{"name":"g","arguments":""}}]},
        {"role":"assistant","content":"x","tool_calls":[]},{"role":"tool","tool_call_id":"c","content":"4"}])");
    ASSERT_TRUE(request.ok()) << request.error().message;
    EXPECT_EQ(request->messages_json,
              R"([{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":)"
              R"({"name":"f","arguments":{"a":1.50}}},{"function":{"name":"g","arguments":{}}}]},)"
              R"({"role":"assistant","content":"x"},{"role":"tool","tool_call_id":"c","content":"4"}])");
    // What is no object of JSON stays the text that it is.
    for (const char* text : {"{", "[1]", "not json", "null", "{\\\"a\\\": \\\"1\\\",}"}) {
        const std::string call = R"({"function":{"name":"f","arguments":")" + std::string(text) + "\"}}";
        auto kept = chat(R"([{"role":"assistant","content":"x","tool_calls":[)" + call + "]}]");
        ASSERT_TRUE(kept.ok()) << call;
        EXPECT_EQ(kept->messages_json, R"([{"role":"assistant","content":"x","tool_calls":[)" + call + "]}]");
    }
    for (auto [call, param] : std::vector<std::pair<std::string, std::string>>{
             {R"({"function":{"name":"f","arguments":[1]}})", "function.arguments"},
             {R"({"function":{"name":5}})", "function.name"},
             {R"({"id":"x"})", "function"}}) {
        auto refused = chat(R"([{"role":"assistant","tool_calls":[)" + call + "]}]");
        ASSERT_FALSE(refused.ok()) << call;
        EXPECT_EQ(refused.error().param, "messages[0].tool_calls[0]." + param);
    }
}

TEST(GenerateOptions, ContradictionsAreRefused) {
    for (auto [fields, param] : std::vector<std::pair<std::string, std::string>>{
             {R"("prompt":"x","n":3,"best_of":2)", "best_of"},
             {R"("prompt":"x","best_of":3,"stream":true)", "best_of"},
             {R"("prompt":"x","prompt_logprobs":1,"stream":true)", "prompt_logprobs"},
             {R"("prompt":["a","b"],"n":65)", "n"},
             {R"("prompt":["a","b"],"best_of":65)", "best_of"},
             {R"("prompt":"x","max_tokens":0)", "max_tokens"},
             {R"("prompt":"x","stream_options":{"include_usage":true})", "stream_options"}}) {
        auto refused = parse_generate_request("{" + fields + "}", ApiKind::kCompletion, kVocab);
        ASSERT_FALSE(refused.ok()) << fields;
        EXPECT_EQ(refused.error().param, param) << refused.error().message;
    }
    auto none = parse_generate_request(R"({"prompt":"x","max_tokens":0,"echo":true})", ApiKind::kCompletion, kVocab);
    ASSERT_TRUE(none.ok());
    EXPECT_EQ(none->n_tokens_max, 0u);
}

TEST(GenerateOptions, BiasesAreOfTokensOfTheVocabulary) {
    for (auto [bias, param] : std::vector<std::pair<std::string, std::string>>{{R"({"1000":1})", "logit_bias"},
                                                                               {R"({"-1":1})", "logit_bias"},
                                                                               {R"({"x":1})", "logit_bias"},
                                                                               {R"({"5":1,"05":2})", "logit_bias"},
                                                                               {R"({"5":101})", "logit_bias.5"},
                                                                               {R"({"5":"1"})", "logit_bias.5"},
                                                                               {R"([1])", "logit_bias"}}) {
        auto refused =
            parse_generate_request("{\"prompt\":\"x\",\"logit_bias\":" + bias + "}", ApiKind::kCompletion, kVocab);
        ASSERT_FALSE(refused.ok()) << bias;
        EXPECT_EQ(refused.error().param, param) << refused.error().message;
    }
}

}  // namespace
}  // namespace lorad::proto::generate_request_options_test
