// Every parameter with values that cannot be meant: an error that names it, at once.
#include <ctime>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "proto/generate/generate_request.h"
#include "tests/support/sanitized.h"

namespace lorad::proto::bad_input_test {
namespace {

enum class Takes { kBool, kNumber, kInteger, kText, kList, kObject, kStop, kLogprobs, kChoice, kPrompt };

struct Parameter {
    std::string name;
    Takes takes;
    ApiKind kind = ApiKind::kChat;
};

const std::vector<Parameter>& parameters() {
    static const std::vector<Parameter> all = {
        {"model", Takes::kText},
        {"adapter", Takes::kText},
        {"adapters", Takes::kList},
        {"lora", Takes::kList},
        {"messages", Takes::kList},
        {"prompt", Takes::kPrompt, ApiKind::kCompletion},
        {"max_tokens", Takes::kInteger},
        {"max_completion_tokens", Takes::kInteger},
        {"min_tokens", Takes::kInteger},
        {"temperature", Takes::kNumber},
        {"top_p", Takes::kNumber},
        {"top_k", Takes::kInteger},
        {"min_p", Takes::kNumber},
        {"typical_p", Takes::kNumber},
        {"presence_penalty", Takes::kNumber},
        {"frequency_penalty", Takes::kNumber},
        {"repetition_penalty", Takes::kNumber},
        {"logit_bias", Takes::kObject},
        {"allowed_token_ids", Takes::kList},
        {"seed", Takes::kInteger},
        {"stop", Takes::kStop},
        {"stop_token_ids", Takes::kList},
        {"include_stop_str_in_output", Takes::kBool},
        {"ignore_eos", Takes::kBool},
        {"skip_special_tokens", Takes::kBool},
        {"add_special_tokens", Takes::kBool},
        {"n", Takes::kInteger},
        {"best_of", Takes::kInteger, ApiKind::kCompletion},
        {"echo", Takes::kBool, ApiKind::kCompletion},
        {"logprobs", Takes::kBool},
        {"logprobs", Takes::kLogprobs, ApiKind::kCompletion},
        {"top_logprobs", Takes::kInteger},
        {"prompt_logprobs", Takes::kInteger},
        {"return_tokens_as_token_ids", Takes::kBool},
        {"return_token_ids", Takes::kBool},
        {"stream", Takes::kBool},
        {"stream_options", Takes::kObject},
        {"priority", Takes::kInteger},
        {"user", Takes::kText},
        {"cache_salt", Takes::kText},
        {"add_generation_prompt", Takes::kBool},
        {"continue_final_message", Takes::kBool},
        {"chat_template_kwargs", Takes::kObject},
        {"documents", Takes::kList},
        {"response_format", Takes::kObject},
        {"structured_outputs", Takes::kObject},
        {"guided_regex", Takes::kText},
        {"guided_grammar", Takes::kText},
        {"guided_choice", Takes::kList},
        {"tools", Takes::kList},
        {"tool_choice", Takes::kChoice},
        {"parallel_tool_calls", Takes::kBool},
        {"include_reasoning", Takes::kBool},
    };
    return all;
}

std::string body_with(const Parameter& parameter, const std::string& value, bool twice = false) {
    std::string body = "{";
    if (parameter.kind == ApiKind::kChat && parameter.name != "messages")
        body += R"("messages":[{"role":"user","content":"x"}],)";
    if (parameter.kind == ApiKind::kCompletion && parameter.name != "prompt") body += R"("prompt":"x",)";
    body += "\"" + parameter.name + "\":" + value;
    if (twice) body += ",\"" + parameter.name + "\":" + value;
    return body + "}";
}

// On an idle machine this is the time that passes.
double cpu_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

constexpr double kSecondsMax = lorad::testing::kIsSanitized ? 0.2 : 0.010;

// The error; fails the test where there is none, where it takes long, or names something else.
void expect_refused(const Parameter& parameter, const std::string& value, bool twice = false) {
    const std::string body = body_with(parameter, value, twice);
    const std::string shown = body.substr(0, 200);
    double seconds = 1.0;
    Result<GenerateRequest> request = make_error(ErrorCode::kInternal, "");
    for (int i = 0; i < 3; ++i) {  // the quickest: caches may be cold
        const double begin = cpu_seconds();
        request = parse_generate_request(body, parameter.kind, 1000);
        seconds = std::min(seconds, cpu_seconds() - begin);
    }
    ASSERT_FALSE(request.ok()) << shown;
    EXPECT_EQ(request.error().code, ErrorCode::kInvalidRequest) << shown;
    EXPECT_NE(request.error().message.find(parameter.name), std::string::npos)
        << shown << ": " << request.error().message;
    EXPECT_LT(request.error().message.size(), 1000u) << "a message that repeats the body";
    EXPECT_LT(seconds, kSecondsMax) << shown;
}

TEST(BadInput, WrongTypesNameTheParameter) {
    for (const Parameter& parameter : parameters()) {
        const Takes takes = parameter.takes;
        if (takes != Takes::kBool) expect_refused(parameter, "true");
        if (takes != Takes::kNumber && takes != Takes::kInteger && takes != Takes::kLogprobs) {
            expect_refused(parameter, "-7");
            expect_refused(parameter, "1e300");
        }
        if (takes != Takes::kText && takes != Takes::kStop && takes != Takes::kPrompt) {
            expect_refused(parameter, "\"\"");
            expect_refused(parameter, "\"NaN\"");
            expect_refused(parameter, "\"" + std::string(1 << 20, 'x') + "\"");
        }
        if (takes != Takes::kObject) expect_refused(parameter, "{\"a\":1}");
        if (takes != Takes::kList && takes != Takes::kPrompt && takes != Takes::kStop) expect_refused(parameter, "[1]");
    }
}

TEST(BadInput, NumbersOutOfRangeNameTheParameter) {
    const std::set<std::string> any_sign = {"seed", "priority"};
    for (const Parameter& parameter : parameters()) {
        if (parameter.takes != Takes::kNumber && parameter.takes != Takes::kInteger) continue;
        expect_refused(parameter, "1e300");
        expect_refused(parameter, "-1e300");
        expect_refused(parameter, "99999999999999999999");
        if (!any_sign.contains(parameter.name)) expect_refused(parameter, "-3");
        if (parameter.takes == Takes::kInteger) expect_refused(parameter, "1.5");
    }
}

TEST(BadInput, WhatIsNoJsonSaysWhere) {
    for (const Parameter& parameter : parameters()) {
        for (const char* value :
             {"NaN", "Infinity", "-Infinity", "1e999", "'x'", "[1,]", "{", "\"\x01\"", "\"\xff\""}) {
            auto request = parse_generate_request(body_with(parameter, value), parameter.kind, 1000);
            ASSERT_FALSE(request.ok()) << parameter.name << value;
            EXPECT_EQ(request.error().code, ErrorCode::kInvalidRequest);
        }
    }
}

TEST(BadInput, AKeyThatComesTwiceIsNamed) {
    const std::map<Takes, std::string> good = {
        {Takes::kBool, "false"},      {Takes::kNumber, "0.5"},  {Takes::kInteger, "1"},  {Takes::kText, "\"a\""},
        {Takes::kList, "[]"},         {Takes::kObject, "{}"},   {Takes::kStop, "\"a\""}, {Takes::kLogprobs, "1"},
        {Takes::kChoice, "\"auto\""}, {Takes::kPrompt, "\"a\""}};
    for (const Parameter& parameter : parameters()) expect_refused(parameter, good.at(parameter.takes), true);
}

TEST(BadInput, DeepNestingIsRefused) {
    for (const Parameter& parameter : parameters()) {
        std::string deep = std::string(100000, '[') + std::string(100000, ']');
        auto request = parse_generate_request(body_with(parameter, deep), parameter.kind, 1000);
        ASSERT_FALSE(request.ok()) << parameter.name;
        EXPECT_EQ(request.error().code, ErrorCode::kInvalidRequest);
    }
}

TEST(BadInput, ManyUnknownFieldsAreAFewInTheList) {
    std::string body = R"({"prompt":"x")";
    for (int i = 0; i < 20000; ++i) body += ",\"unknown" + std::to_string(i) + "\":1";
    auto request = parse_generate_request(body + "}", ApiKind::kCompletion, 1000);
    ASSERT_TRUE(request.ok());
    EXPECT_EQ(request->ignored_fields.size(), kIgnoredFieldsMax);
    EXPECT_EQ(request->ignored_fields.back(), "unknown63");
}

TEST(BadInput, LongTextsAreBounded) {
    const std::string text = "\"" + std::string(1 << 20, 'x') + "\"";
    for (const Parameter& parameter : parameters()) {
        // Prompts and names of models may be long; the model's name is looked up.
        if (parameter.takes == Takes::kPrompt || parameter.name == "model" || parameter.name == "adapter") continue;
        expect_refused(parameter, text);
    }
}

}  // namespace
}  // namespace lorad::proto::bad_input_test
