// OpenAI's custom tools and allowed tools in chats: functions to the model, texts to the client.
#include "proto/generate/custom_tools.h"

#include <gtest/gtest.h>

#include "proto/generate/generate_request.h"

namespace lorad::proto::custom_tools_test {
namespace {

constexpr const char* kAsk = R"("messages":[{"role":"user","content":"a"}])";
constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"custom","custom":{"name":"sh","description":"Runs."}}])";

Result<GenerateRequest> chat(const std::string& fields) {
    return parse_generate_request("{" + fields + "}", ApiKind::kChat, 1000);
}

TEST(CustomTools, AreFunctionsOfOneTextToTheModel) {
    auto request = chat(std::string(kAsk) + "," + kTools +
                        R"(,"tool_choice":{"type":"custom","custom":{"name":"sh"}},"temperature":0.5,"nonsense":1)");
    ASSERT_TRUE(request.ok()) << request.error().message;
    EXPECT_EQ(
        request->tools_json,
        R"([{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"sh","description":"Runs.","parameters":)" +
            std::string(kCustomToolSchema) + "}}]");
    EXPECT_EQ(request->tool_choice, ToolChoice::kNamed);
    EXPECT_EQ(request->forced_function, "sh");
    EXPECT_EQ(request->custom_tools, (ToolNames{"sh"}));
    EXPECT_FLOAT_EQ(*request->temperature, 0.5f);
    EXPECT_EQ(request->ignored_fields, std::vector<std::string>{"nonsense"});
    auto history = chat(
        R"("messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"custom",)"
        R"("custom":{"name":"sh","input":"ls \"x\""}}]},{"role":"tool","tool_call_id":"c","content":"y"}])");
    ASSERT_TRUE(history.ok()) << history.error().message;
    EXPECT_NE(history->messages_json.find(
                  R"({"id":"c","type":"function","function":{"name":"sh","arguments":{"input":"ls \"x\""}}})"),
              std::string::npos)
        << history->messages_json;
}

TEST(CustomTools, OnlyAllowedToolsAreShown) {
    auto request = chat(
        std::string(kAsk) + "," + kTools +
        R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"f"}}]}})");
    ASSERT_TRUE(request.ok()) << request.error().message;
    EXPECT_EQ(request->tools_json, R"([{"type":"function","function":{"name":"f"}}])");
    EXPECT_EQ(request->tool_choice, ToolChoice::kRequired);
    EXPECT_TRUE(request->custom_tools.empty());
}

TEST(CustomTools, ErrorsNameTheClientsFields) {
    const std::pair<std::string, const char*> cases[] = {
        {R"("tools":[{"type":"custom"}])", "tools[0].custom"},
        {R"("tools":[{"type":"custom","custom":{"name":""}}])", "tools[0].custom.name"},
        {R"("tools":[{"type":"custom","custom":{"name":"f","format":{"type":"grammar"}}}])", "tools[0].custom.format"},
        {std::string(kTools) + R"(,"tool_choice":{"type":"custom","custom":{"name":"g"}})", "tool_choice.custom.name"},
        {std::string(kTools) + R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"none","tools":[]}})",
         "tool_choice.allowed_tools.mode"},
        {std::string(kTools) +
             R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"zz"}}]}})",
         "tool_choice.allowed_tools.tools"},
        {std::string(kTools) + R"(,"temperature":9)", "temperature"},
    };
    for (const auto& [fields, param] : cases) {
        auto request = chat(std::string(kAsk) + "," + fields);
        ASSERT_FALSE(request.ok()) << fields;
        EXPECT_EQ(request.error().param, param) << request.error().message;
    }
}

ChoicePart calls(std::vector<ToolCallPart> list, std::string finish_reason = {}) {
    ChoicePart part;
    part.tool_calls = std::move(list);
    part.finish_reason = std::move(finish_reason);
    return part;
}

TEST(CustomCalls, TheirInputComesWhenItIsWhole) {
    const ToolNames names{"sh"};
    CustomCalls custom(names);
    ChoicePart part = calls({{0, "c0", "sh", "{\"inp"}});
    custom.apply(part);
    EXPECT_TRUE(part.tool_calls.empty());
    part = calls({{0, "", "", "ut\":\"l\\ns\"}"}});
    custom.apply(part);
    EXPECT_TRUE(part.tool_calls.empty());
    part = calls({{1, "c1", "f", "{"}, {1, "", "", "}"}});
    custom.apply(part);
    ASSERT_EQ(part.tool_calls.size(), 3u);
    EXPECT_EQ(part.tool_calls[0].arguments, "l\ns");
    EXPECT_TRUE(part.tool_calls[0].is_custom);
    EXPECT_EQ(part.tool_calls[0].id, "c0");
    EXPECT_EQ(part.tool_calls[1].name, "f");
    EXPECT_FALSE(part.tool_calls[1].is_custom);
    part = calls({{2, "c2", "sh", "no JSON"}}, "stop");
    custom.apply(part);
    ASSERT_EQ(part.tool_calls.size(), 1u);
    EXPECT_EQ(part.tool_calls[0].arguments, "no JSON") << "as it is";
    ResponseHead head;
    head.kind = ApiKind::kChat;
    const std::vector<ChoicePart> choices{part};
    EXPECT_NE(whole_response(head, choices, {})
                  .find(R"("tool_calls":[{"id":"c2","type":"custom","custom":{"name":"sh","input":"no JSON"}}])"),
              std::string::npos);
}

// However an answer is cut, nothing of the object around its input is shown as the input.
TEST(CustomCalls, ACutInputIsWhatHasComeOfIt) {
    const std::string input = "l\n \"q\" \\ \u00e9\U0001f600\x01 {end}";
    const std::string arguments = custom_tool_arguments(input);
    EXPECT_EQ(custom_tool_input(arguments), input);
    size_t n_before = 0;
    for (size_t n = 0; n < arguments.size(); ++n) {
        const std::string cut = custom_tool_input(replace_invalid_utf8(arguments.substr(0, n)));
        const std::string whole = cut.substr(0, cut.find("\uFFFD"));
        EXPECT_TRUE(input.starts_with(whole)) << n << " " << cut;
        EXPECT_GE(whole.size() + 1, n_before) << n;
        n_before = whole.size();
    }
    EXPECT_EQ(custom_tool_input(R"({"input": "a\ud83d)"), "a");
    EXPECT_EQ(custom_tool_input(R"({"input": "a\ud83d\ude)"), "a");
    EXPECT_EQ(custom_tool_input(R"({"inp)"), "");
    for (const char* other : {"no JSON", R"({"input":5})", R"({"x":"y"})", R"({"input": foo)"})
        EXPECT_EQ(custom_tool_input(other), other) << "as it is";
}

}  // namespace
}  // namespace lorad::proto::custom_tools_test
