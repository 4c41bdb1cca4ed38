// How errors about a translated body name the fields of the client's.
#include "proto/field_names.h"

#include <gtest/gtest.h>

#include "proto/generate/generate_request.h"
#include "proto/messages/messages_request.h"
#include "proto/responses/responses_request.h"

namespace lorad::proto::field_names_test {
namespace {

Error renamed(const FieldNames& names, const std::string& param, const std::string& message) {
    return names.renamed(make_error(ErrorCode::kInvalidRequest, message, param));
}

TEST(FieldNames, NamesThatFollowOneAnotherAreNotRenamedTwice) {
    FieldNames names;
    names.add("tools[0]", "tools[2]");
    names.add("tools[2]", "tools[5]");
    names.add("tools[1]", "tools[0]");
    const Error error = renamed(names, "tools[0].function.name",
                                "tools[0].function.name: as that of tools[2], and tools[1].function.name");
    EXPECT_EQ(error.param, "tools[2].function.name");
    EXPECT_EQ(error.message, "tools[2].function.name: as that of tools[5], and tools[0].function.name");
    EXPECT_EQ(renamed(names, "tool_choice", "neither tools[0] nor tools[2]").message, "neither tools[2] nor tools[5]");
}

TEST(FieldNames, TheLongestNameCountsAndWordsStay) {
    FieldNames names;
    names.add("messages[1]", "input[3]");
    names.add("messages[1].tool_calls[0]", "input[4]");
    names.add("max_tokens", "max_output_tokens");
    names.add("stop", "stop_sequences");
    EXPECT_EQ(renamed(names, "messages", "messages[1].tool_calls[0].id beside messages[1].role").message,
              "input[4].id beside input[3].role");
    EXPECT_EQ(renamed(names, "n", "n: a stop before max_tokens, not my_max_tokens or max_tokens_2").message,
              "n: a stop before max_output_tokens, not my_max_tokens or max_tokens_2");
    EXPECT_EQ(renamed(names, "stop", "stop: too many").message, "stop_sequences: too many");
    EXPECT_EQ(renamed(names, "", "of max_tokens").message, "of max_tokens") << "about no field";
}

TEST(FieldNames, AToolBehindOneThatIsNotAllowedIsNamedByItsPlace) {
    const std::string body =
        R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"x"}},)"
        R"({"type":"function","function":{"name":"f","parameters":5}},{"type":"function","function":{"name":"g"}}],)"
        R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[)"
        R"({"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}]}}})";
    const auto request = parse_generate_request(body, ApiKind::kChat, 1000);
    ASSERT_FALSE(request.ok());
    EXPECT_EQ(request.error().param, "tools[1].function.parameters");
    EXPECT_TRUE(request.error().message.starts_with("tools[1].function.parameters: ")) << request.error().message;
}

void expect_names(const FieldNames& names, const std::vector<std::pair<std::string, std::string>>& expected) {
    for (const auto& [translated, original] : expected) EXPECT_EQ(names.original(translated), original) << translated;
}

// What a template does not show, and what is found later, is told by the paths of the body that the client sent.
TEST(FieldNames, PartsOfAConversationOfResponsesAreThoseOfItsItems) {
    const auto request = parse_responses_request(
        R"({"instructions":"be","input":[{"role":"user","content":"a"},{"type":"reasoning","summary":[{"type":"summary_text","text":"hm"}]},)"
        R"({"role":"assistant","content":"b"},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},)"
        R"({"type":"custom_tool_call","call_id":"d","name":"g","input":"x"},{"type":"function_call_output","call_id":"c","output":"o"}],)"
        R"("tools":[{"type":"function","name":"f"},{"type":"custom","name":"g"}],"text":{"format":{"type":"json_schema","name":"n","schema":{}}}})",
        1000);
    ASSERT_TRUE(request.ok()) << request.error().message;
    expect_names(request->generate.names, {{"messages", "input"},
                                           {"messages[0]", "instructions"},
                                           {"messages[0].content", "instructions"},
                                           {"messages[1].content", "input[0].content"},
                                           {"messages[2].reasoning_content", "input[1].summary"},
                                           {"messages[2].content", "input[2].content"},
                                           {"messages[2].tool_calls[0]", "input[3]"},
                                           {"messages[2].tool_calls[0].id", "input[3].call_id"},
                                           {"messages[2].tool_calls[0].function.name", "input[3].name"},
                                           {"messages[2].tool_calls[0].function.arguments", "input[3].arguments"},
                                           {"messages[2].tool_calls[1].function.arguments", "input[4].input"},
                                           {"messages[3].tool_call_id", "input[5].call_id"},
                                           {"messages[3].content", "input[5].output"},
                                           {"tools[1].function.name", "tools[1].name"},
                                           {"response_format.json_schema.schema.type", "text.format.schema.type"},
                                           {"max_tokens", "max_output_tokens"}});
}

TEST(FieldNames, PartsOfAConversationOfMessagesAreThoseOfItsBlocks) {
    const auto request = parse_messages_request(
        R"({"max_tokens":9,"system":[{"type":"text","text":"be"}],"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[)"
        R"({"type":"thinking","thinking":"hm"},{"type":"text","text":"b"},{"type":"tool_use","id":"c","name":"f","input":{}}]},)"
        R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"o"},{"type":"text","text":"d"}]}],)"
        R"("tools":[{"name":"f","input_schema":{"type":"object"}}],"stop_sequences":["x"],"metadata":{"user_id":"u"}})",
        MessagesUse::kGenerate, 1000);
    ASSERT_TRUE(request.ok()) << request.error().message;
    expect_names(request->names, {{"messages[0].content", "system"},
                                  {"messages[1].content", "messages[0].content"},
                                  {"messages[2].reasoning_content", "messages[1].content[0].thinking"},
                                  {"messages[2].content", "messages[1].content"},
                                  {"messages[2].tool_calls[0]", "messages[1].content[2]"},
                                  {"messages[2].tool_calls[0].id", "messages[1].content[2].id"},
                                  {"messages[2].tool_calls[0].function.arguments", "messages[1].content[2].input"},
                                  {"messages[3].tool_call_id", "messages[2].content[0].tool_use_id"},
                                  {"messages[3].content", "messages[2].content[0].content"},
                                  {"messages[4].content", "messages[2].content"},
                                  {"tools[0].function.parameters.properties.a", "tools[0].input_schema.properties.a"},
                                  {"stop[0]", "stop_sequences[0]"},
                                  {"user", "metadata.user_id"}});
}

TEST(FieldNames, CustomToolsOfChatsAreNamedAsTheyStandThere) {
    const auto request = parse_generate_request(
        R"({"messages":[{"role":"user","content":"a","x":1},{"role":"assistant","tool_calls":[{"id":"c","type":"custom","custom":{"name":"g","input":"i","y":1}}]}],)"
        R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"custom","z":1,"custom":{"name":"g","w":1,"format":{"type":"text","v":1}}}],)"
        R"("tool_choice":{"type":"allowed_tools","q":1,"allowed_tools":{"mode":"auto","r":1,"tools":[{"type":"custom","s":1,"custom":{"name":"g","t":1}}]}}})",
        ApiKind::kChat, 1000);
    ASSERT_TRUE(request.ok()) << request.error().message;
    const std::vector<std::string> expected = {"tool_choice.q",
                                               "tool_choice.allowed_tools.r",
                                               "tool_choice.allowed_tools.tools[0].s",
                                               "tool_choice.allowed_tools.tools[0].custom.t",
                                               "tools[1].z",
                                               "tools[1].custom.w",
                                               "tools[1].custom.format.v",
                                               "messages[1].tool_calls[0].custom.y",
                                               "messages[0].x"};
    EXPECT_EQ(request->ignored_fields, expected);
    expect_names(request->names,
                 {{"messages[1].tool_calls[0].function.arguments", "messages[1].tool_calls[0].custom.input"},
                  {"tools[0].function.name", "tools[1].custom.name"}});
}

}  // namespace
}  // namespace lorad::proto::field_names_test
