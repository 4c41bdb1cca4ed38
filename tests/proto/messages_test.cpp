// /v1/messages: Anthropic's bodies said as chats, and answers as blocks and events.
#include <gtest/gtest.h>

#include "proto/messages/messages_request.h"
#include "proto/messages/messages_response.h"

namespace lorad::proto::messages_test {
namespace {

constexpr uint32_t kVocab = 1000;
constexpr const char* kHi = R"("messages":[{"role":"user","content":"hi"}])";

GenerateRequest parsed(const std::string& fields) {
    Result<GenerateRequest> request =
        parse_messages_request("{\"max_tokens\":5," + fields + "}", MessagesUse::kGenerate, kVocab);
    EXPECT_TRUE(request.ok()) << fields << ": " << request.error().message;
    return request.ok() ? std::move(*request) : GenerateRequest();
}
Error refused(const std::string& fields) {
    Result<GenerateRequest> request =
        parse_messages_request("{\"max_tokens\":5," + fields + "}", MessagesUse::kGenerate, kVocab);
    EXPECT_FALSE(request.ok()) << fields;
    return request.ok() ? Error() : request.error();
}

TEST(MessagesRequest, BlocksBecomeMessagesOfAChat) {
    EXPECT_EQ(
        parsed(
            R"("system":[{"type":"text","text":"Be nice.","cache_control":{"type":"ephemeral"}}],"messages":[)"
            R"({"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},)"
            R"({"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"well"},)"
            R"({"type":"tool_use","id":"t1","name":"f","input":{"x":1.50}}]},)"
            R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"7"}],"is_error":true},{"type":"text","text":"so?"}]}])")
            .messages_json,
        R"([{"role":"system","content":"Be nice."},{"role":"user","content":"a\nb"},)"
        R"({"role":"assistant","content":"well","reasoning_content":"hm","tool_calls":[)"
        R"({"id":"t1","type":"function","function":{"name":"f","arguments":{"x":1.50}}}]},)"
        R"({"role":"tool","tool_call_id":"t1","content":"7","is_error":true},)"
        R"({"role":"user","content":"so?"}])");
}

TEST(MessagesRequest, AnAnswerThatTheClientHasBegunIsContinued) {
    GenerateRequest begun =
        parsed(R"("messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"Well, "}])");
    EXPECT_EQ(begun.continued_text, "Well, ");
    EXPECT_FALSE(begun.add_generation_prompt);
    GenerateRequest plain = parsed(kHi);
    EXPECT_FALSE(plain.continued_text);
    EXPECT_TRUE(plain.add_generation_prompt);
}

TEST(MessagesRequest, OptionsAreThoseOfChatsUnderOtherNames) {
    GenerateRequest request = parsed(
        std::string(kHi) +
        R"(,"stop_sequences":["x"],"metadata":{"user_id":"me"},"top_k":3,"temperature":0.5,"stream":true,)"
        R"("tools":[{"name":"f","input_schema":{"type":"object"},"cache_control":{"type":"ephemeral"}}],)"
        R"("tool_choice":{"type":"any","disable_parallel_tool_use":true},"service_tier":"auto","nonsense":1,"adapter":"x")");
    const GenerateRequest& generate = request;
    EXPECT_EQ(generate.stop, std::vector<std::string>{"x"});
    EXPECT_EQ(generate.user, "me");
    EXPECT_EQ(generate.top_k, 3u);
    EXPECT_EQ(generate.n_tokens_max, 5u);
    EXPECT_TRUE(generate.stream);
    EXPECT_EQ(generate.tools_json, R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])");
    EXPECT_EQ(generate.tool_choice, ToolChoice::kRequired);
    EXPECT_FALSE(generate.parallel_tool_calls);
    EXPECT_EQ(generate.ignored_fields, std::vector<std::string>{"nonsense"});
    EXPECT_EQ(generate.adapters->at(0).name, "x");
    GenerateRequest shaped = parsed(
        std::string(kHi) +
        R"(,"output_config":{"format":{"type":"json_schema","schema":{"type":"null"}}},"thinking":{"type":"disabled"})");
    EXPECT_EQ(shaped.structure->source.substr(0, 14), R"({"type":"null")");
    EXPECT_EQ(shaped.names.original(shaped.structure->param), "output_config.format.schema");
    EXPECT_FALSE(shaped.include_reasoning);
}

TEST(MessagesRequest, OnlyCountingNeedsNoMaxTokens) {
    const std::string body = "{" + std::string(kHi) + "}";
    EXPECT_EQ(parse_messages_request(body, MessagesUse::kGenerate, kVocab).error().param, "max_tokens");
    EXPECT_TRUE(parse_messages_request(body, MessagesUse::kCountTokens, kVocab).ok());
}

TEST(MessagesRequest, ErrorsNameTheFieldsOfTheBody) {
    auto block = [](const std::string& text) { return R"("messages":[{"role":"user","content":[)" + text + "]}]"; };
    const std::pair<std::string, const char*> cases[] = {
        {R"("messages":[])", "messages"},
        {R"("messages":[{"role":"robot","content":"a"}])", "messages[0].role"},
        {R"("messages":[{"role":"user","content":[]}])", "messages[0].content"},
        {block(R"({"type":"text"})"), "messages[0].content[0].text"},
        {block(R"({"type":"tool_result"})"), "messages[0].content[0].tool_use_id"},
        {R"("messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":3}]}])",
         "messages[0].content[0].input"},
        {R"("messages":[{"role":"user","content":"a"},{"role":"assistant","content":""}])", "messages"},
        {std::string(kHi) + R"(,"stop_sequences":[""])", "stop_sequences[0]"},
        {std::string(kHi) + R"(,"stop_sequences":"x")", "stop_sequences"},
        {std::string(kHi) + R"(,"tools":[{"name":"f"}])", "tools[0].input_schema"},
        {std::string(kHi) + R"(,"tools":[{"name":"","input_schema":{}}])", "tools[0].name"},
        {std::string(kHi) + R"(,"tools":[{"name":"f","input_schema":3}])", "tools[0].input_schema"},
        {std::string(kHi) + R"(,"tool_choice":{"type":"tool","name":"f"})", "tool_choice.name"},
        {std::string(kHi) + R"(,"metadata":{"user_id":3})", "metadata.user_id"},
        {std::string(kHi) + R"(,"temperature":"hot")", "temperature"},
    };
    for (const auto& [fields, param] : cases) {
        Error error = refused(fields);
        EXPECT_EQ(error.param, param) << error.message;
        EXPECT_EQ(error.code, ErrorCode::kInvalidRequest) << error.message;
    }
}

TEST(MessagesRequest, WhatIsNotDoneIsRefusedByName) {
    const std::pair<std::string, const char*> cases[] = {
        {R"("messages":[{"role":"user","content":[{"type":"image","source":{}}]}])", "messages[0].content[0].type"},
        {R"("messages":[{"role":"assistant","content":[{"type":"redacted_thinking","data":""}]}])",
         "messages[0].content[0].type"},
        {std::string(kHi) + R"(,"tools":[{"type":"bash_20250124","name":"bash"}])", "tools[0].type"},
        {std::string(kHi) + R"(,"tools":[{"name":"f","input_schema":{},"defer_loading":true}])",
         "tools[0].defer_loading"},
        {std::string(kHi) + R"(,"context_management":{"edits":[{"type":"clear_tool_uses_20250919"}]})",
         "context_management"},
        {std::string(kHi) + R"(,"container":"x")", "container"},
        {std::string(kHi) + R"(,"mcp_servers":[{}])", "mcp_servers"},
        {std::string(kHi) + R"(,"thread":{"type":"continue","previous_message_id":"msg_1"})", "thread"},
        {std::string(kHi) + R"(,"compaction":{"type":"enabled"})", "compaction"},
    };
    for (const auto& [fields, param] : cases) {
        Error error = refused(fields);
        EXPECT_EQ(error.param, param) << error.message;
        EXPECT_EQ(error.code, ErrorCode::kUnsupportedParameter) << error.message;
    }
}

TEST(MessagesRequest, HintsChangeNothingAndAreListed) {
    GenerateRequest request = parsed(
        std::string(kHi) +
        R"(,"thinking":{"type":"enabled","budget_tokens":1024},"output_config":{"effort":"low"},)"
        R"("context_management":{},"service_tier":"standard_only","speed":"fast","effort":"low","budget_tokens":5)");
    EXPECT_EQ(request.ignored_fields,
              (std::vector<std::string>{"context_management", "service_tier", "speed", "effort", "budget_tokens",
                                        "thinking.budget_tokens", "output_config.effort"}));
    EXPECT_TRUE(request.include_reasoning) << "what it thinks is shown";
    GenerateRequest summarized = parsed(std::string(kHi) + R"(,"thinking":{"type":"adaptive","display":"summarized"})");
    EXPECT_EQ(summarized.ignored_fields, std::vector<std::string>{"thinking.display"});
    EXPECT_TRUE(summarized.include_reasoning);
    EXPECT_FALSE(parsed(std::string(kHi) + R"(,"thinking":{"type":"adaptive","display":"omitted"})").include_reasoning);
    EXPECT_EQ(refused(std::string(kHi) + R"(,"thinking":{"type":"adaptive","display":"x"})").param, "thinking.display");
    EXPECT_EQ(request.messages_json, parsed(kHi).messages_json);
}

AnswerBlocks blocks_of(const std::vector<ChoicePart>& parts, std::string* events = nullptr) {
    AnswerBlocks blocks([](BlockKind) { return std::string(); });
    for (const ChoicePart& part : parts) {
        for (const BlockChange& change : blocks.take(part)) {
            if (events != nullptr) *events += messages_change_event(blocks.blocks(), change);
        }
    }
    return blocks;
}
ChoicePart text_part(std::string text, std::string finish_reason = {}) {
    ChoicePart part;
    part.text = std::move(text);
    part.finish_reason = std::move(finish_reason);
    return part;
}

TEST(MessagesResponse, EventsHaveTheirNamesAndOrder) {
    ChoicePart thought, call;
    thought.reasoning = "hm";
    call.tool_calls = {{0, "c0", "f", "{\"x\":1}"}};
    call.finish_reason = "tool_calls";
    std::string events;
    AnswerBlocks blocks = blocks_of({thought, text_part("So"), call}, &events);
    EXPECT_EQ(
        events,
        "event: content_block_start\n"
        R"(data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}})"
        "\n\nevent: content_block_delta\n"
        R"(data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}})"
        "\n\nevent: content_block_stop\n"
        R"(data: {"type":"content_block_stop","index":0})"
        "\n\nevent: content_block_start\n"
        R"(data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}})"
        "\n\nevent: content_block_delta\n"
        R"(data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"So"}})"
        "\n\nevent: content_block_stop\n"
        R"(data: {"type":"content_block_stop","index":1})"
        "\n\nevent: content_block_start\n"
        R"(data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"c0","name":"f","input":{}}})"
        "\n\nevent: content_block_delta\n"
        R"(data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"x\":1}"}})"
        "\n\nevent: content_block_stop\n"
        R"(data: {"type":"content_block_stop","index":2})"
        "\n\n");
    EXPECT_EQ(
        messages_end_events(blocks.blocks(), {"tool_calls", "", {9, 4, 3}}),
        "event: message_delta\n"
        R"(data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},)"
        R"("usage":{"input_tokens":6,"cache_creation_input_tokens":0,"cache_read_input_tokens":3,"output_tokens":4}})"
        "\n\nevent: message_stop\n"
        R"(data: {"type":"message_stop"})"
        "\n\n");
}

// A client that joins what a stream brings of an input has what the whole answer shows.
TEST(MessagesResponse, StreamsBringInputsAsWholeAnswersShowThem) {
    for (const std::string arguments : {"{\"x\":1}", "{\"x\":", "no JSON", "", "[1]"}) {
        ChoicePart first, rest;
        first.tool_calls = {{0, "c0", "f", arguments.substr(0, 4)}};
        rest.tool_calls = {{0, "", "", arguments.substr(std::min<size_t>(4, arguments.size()))}};
        rest.finish_reason = "length";
        std::string events;
        AnswerBlocks blocks = blocks_of({first, rest}, &events);
        ResponseHead head;
        auto whole = parse_json(messages_object(head, blocks.blocks(), {"length", "", {}}));
        const std::string input = whole->root().find("content")->as_array()->at(0).find("input")->dump();
        std::string joined;
        size_t n_deltas = 0;
        for (size_t at = 0; (at = events.find("data: ", at)) != std::string::npos; ++at) {
            auto data = parse_json(std::string_view(events).substr(at + 6, events.find('\n', at) - at - 6));
            std::optional<JsonValue> delta = data->root().find("delta");
            if (!delta) continue;
            joined += *delta->string_or("partial_json", "");
            ++n_deltas;
        }
        EXPECT_EQ(joined, input) << arguments;
        EXPECT_EQ(n_deltas, 1u) << "whole at once";
        std::string eager;
        AnswerBlocks as_written([](BlockKind) { return std::string(); });
        for (const ChoicePart& part : {first, rest}) {
            for (const BlockChange& change : as_written.take(part))
                eager += messages_change_event(as_written.blocks(), change, {"f"});
        }
        EXPECT_EQ(eager.find("INVALID_JSON"), std::string::npos) << "as it is written";
    }
}

TEST(MessagesRequest, ToolsMayHaveTheirInputStreamedAsItIsWritten) {
    const GenerateRequest request = parsed(
        std::string(kHi) + R"(,"tools":[{"name":"f","input_schema":{"type":"object"},"eager_input_streaming":true},)"
                           R"({"name":"g","input_schema":{"type":"object"},"eager_input_streaming":false}])");
    EXPECT_EQ(request.eager_tools, (std::set<std::string, std::less<>>{"f"}));
    EXPECT_TRUE(request.ignored_fields.empty());
}

// Clients check answers against schemas in which what has no value is not there.
TEST(MessagesResponse, WhatHasNoValueIsLeftOut) {
    ResponseHead head;
    head.id = "msg_1";
    head.model = "m";
    EXPECT_EQ(
        messages_object(head, blocks_of({text_part("a", "stop")}).blocks(), {"stop", "", {2, 1, 0}}),
        R"({"id":"msg_1","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"a"}],)"
        R"("stop_reason":"end_turn","stop_sequence":null,)"
        R"("usage":{"input_tokens":2,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":1}})");
}

TEST(MessagesResponse, SaysWhyTheAnswerEnded) {
    ResponseHead head;
    auto reason = [&](const std::vector<ChoicePart>& parts, const MessagesEnd& end) {
        auto document = parse_json(messages_object(head, blocks_of(parts).blocks(), end));
        return std::string(*document->root().string_or("stop_reason", "")) + "/" +
               std::string(*document->root().string_or("stop_sequence", "null"));
    };
    EXPECT_EQ(reason({text_part("a", "stop")}, {"stop", "", {}}), "end_turn/null");
    EXPECT_EQ(reason({text_part("a", "stop")}, {"stop", "xy", {}}), "stop_sequence/xy");
    EXPECT_EQ(reason({text_part("a", "length")}, {"length", "", {}}), "max_tokens/null");
    ChoicePart call;
    call.tool_calls = {{0, "c0", "f", "{\"x\":"}};
    call.finish_reason = "stop";
    EXPECT_EQ(reason({call}, {"stop", "", {}}), "tool_use/null");
    EXPECT_NE(messages_object(head, blocks_of({call}).blocks(), {"length", "", {}})
                  .find(R"("input":{"INVALID_JSON":"{\"x\":"})"),
              std::string::npos)
        << "half an object is none";
    call.tool_calls = {{0, "c0", "f", "{}"}};
    EXPECT_NE(messages_object(head, blocks_of({call}).blocks(), {"stop", "", {}}).find(R"("input":{})"),
              std::string::npos);
}

TEST(MessagesRequest, ArgumentsThatAreNoObjectComeBackAsTheirText) {
    GenerateRequest request = parsed(
        R"("messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f",)"
        R"("input":{"INVALID_JSON":"{\"x\":"}}]}])");
    EXPECT_NE(request.messages_json.find(R"("arguments":"{\"x\":")"), std::string::npos) << request.messages_json;
}

TEST(MessagesRequest, UnknownFieldsWithinOthersAreListedByTheirPath) {
    GenerateRequest request = parsed(
        R"("messages":[{"role":"user","content":[{"type":"text","text":"a","bold":true}],"mood":"good"}],)"
        R"("tools":[{"name":"f","input_schema":{"type":"object"},"colour":"red"}],"tool_choice":{"type":"auto","how":1},)"
        R"("thinking":{"type":"disabled","deep":true},"output_config":{"format":{"type":"json_schema","schema":{},"foo":1}})");
    EXPECT_EQ(request.ignored_fields,
              (std::vector<std::string>{"messages[0].mood", "messages[0].content[0].bold", "tools[0].colour",
                                        "tool_choice.how", "thinking.deep", "output_config.format.foo"}));
}

TEST(MessagesResponse, ErrorsHaveAnthropicsEnvelope) {
    auto type = [](ErrorCode code) {
        auto document = parse_json(messages_error_body(make_error(code, "why")));
        EXPECT_EQ(*document->root().string_or("type", ""), "error");
        EXPECT_EQ(*document->root().find("error")->string_or("message", ""), "why");
        return std::string(*document->root().find("error")->string_or("type", ""));
    };
    EXPECT_EQ(type(ErrorCode::kInvalidRequest), "invalid_request_error");
    EXPECT_EQ(type(ErrorCode::kModelNotFound), "not_found_error");
    EXPECT_EQ(type(ErrorCode::kPayloadTooLarge), "request_too_large");
    EXPECT_EQ(type(ErrorCode::kOverloaded), "rate_limit_error");
    EXPECT_EQ(type(ErrorCode::kDraining), "overloaded_error");
    EXPECT_EQ(type(ErrorCode::kInternal), "api_error");
    EXPECT_EQ(type(ErrorCode::kAdapterUnsupported), "invalid_request_error");
}

}  // namespace
}  // namespace lorad::proto::messages_test
