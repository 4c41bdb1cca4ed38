// /v1/responses: bodies said as chats, and answers as items and events.
#include <gtest/gtest.h>

#include "proto/generate/answer_blocks.h"
#include "proto/responses/responses_request.h"
#include "proto/responses/responses_response.h"

namespace lorad::proto::responses_test {
namespace {

constexpr uint32_t kVocab = 1000;

ResponsesRequest parsed(const std::string& body) {
    Result<ResponsesRequest> request = parse_responses_request(body, kVocab);
    EXPECT_TRUE(request.ok()) << body << ": " << request.error().message;
    return request.ok() ? std::move(*request) : ResponsesRequest();
}
std::string messages_of(const std::string& fields) { return parsed("{" + fields + "}").generate.messages_json; }
Error refused(const std::string& fields) {
    Result<ResponsesRequest> request = parse_responses_request("{" + fields + "}", kVocab);
    EXPECT_FALSE(request.ok()) << fields;
    return request.ok() ? Error() : request.error();
}

TEST(ResponsesRequest, ATextIsTheUsersMessageBehindTheInstructions) {
    EXPECT_EQ(messages_of(R"("input":"hi")"), R"([{"role":"user","content":"hi"}])");
    EXPECT_EQ(messages_of(R"("input":"hi","instructions":"Be nice.")"),
              R"([{"role":"system","content":"Be nice."},{"role":"user","content":"hi"}])");
}

// What was kept can be continued, although it is deeper and longer than one body may be.
TEST(ResponsesRequest, ALongConversationGoesOn) {
    auto earlier = std::make_shared<StoredResponse>();
    auto add = [&](const std::string& members) {
        const std::string id = "m" + std::to_string(earlier->items.size());
        earlier->items.push_back(std::make_shared<const ResponseItem>(ResponseItem{
            id, "{\"id\":\"" + id + "\",\"type\":\"message\",\"role\":\"user\",\"content\":\"a\"," + members + "}"}));
    };
    std::string many = "0";
    for (int i = 0; i < 200'000; ++i) many += ",0";
    add("\"x\":[" + many + "]");
    add("\"x\":[" + many + "]");
    add("\"x\":" + std::string(63, '[') + std::string(63, ']'));
    for (int i = 0; i < 5; ++i) add("\"x\":\"" + std::string(4 << 20, 'x') + "\"");
    ResponsesMemory memory;
    memory.response = [&](std::string_view) { return earlier; };
    memory.item = [&](std::string_view) { return earlier->items[2]; };
    memory.make_item_id = [](std::string_view) { return "new"; };
    const std::string body =
        R"({"previous_response_id":"r","input":[{"type":"item_reference","id":"m2"},{"role":"user","content":"b"}]})";
    Result<ResponsesRequest> request = parse_responses_request(body, kVocab, &memory);
    ASSERT_TRUE(request.ok()) << request.error().message;
    EXPECT_EQ(request->earlier.size(), earlier->items.size());
    EXPECT_TRUE(request->generate.messages_json.ends_with(R"({"role":"user","content":"b"}])"))
        << request->generate.messages_json;

    request = parse_responses_request(R"({"input":[{"id":"m2"}]})", kVocab, &memory);
    ASSERT_TRUE(request.ok()) << request.error().message;
    EXPECT_EQ(request->own_input.at(0), earlier->items[2]);

    // But a small body names a large item only so often, at once or turn after turn.
    memory.item = [&](std::string_view) { return earlier->items[4]; };
    std::string many_references = R"({"type":"item_reference","id":"m4"})";
    for (int i = 0; i < 1000; ++i) many_references += R"(,{"type":"item_reference","id":"m4"})";
    request = parse_responses_request("{\"input\":[" + many_references + "]}", kVocab, &memory);
    ASSERT_FALSE(request.ok());
    EXPECT_EQ(request.error().param, "input[7]");
    for (int i = 0; i < 4; ++i) earlier->items.push_back(earlier->items[4]);
    request = parse_responses_request(body, kVocab, &memory);
    ASSERT_FALSE(request.ok());
    EXPECT_EQ(request.error().param, "previous_response_id");
}

TEST(ResponsesRequest, SystemTextsAtTheBeginningAreOneMessage) {
    EXPECT_EQ(messages_of(R"("instructions":"A","input":[{"role":"developer","content":"B"},)"
                          R"({"role":"user","content":"hi"},{"role":"system","content":"C"}])"),
              R"([{"role":"system","content":"A\n\nB"},{"role":"user","content":"hi"},)"
              R"({"role":"system","content":"C"}])");
}

TEST(ResponsesRequest, WhatTheAssistantThoughtSaidAndCalledIsOneMessage) {
    EXPECT_EQ(
        messages_of(
            R"("input":[{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},)"
            R"({"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},)"
            R"({"type":"message","role":"assistant","id":"msg_1","status":"completed","content":[{"type":"output_text","text":"well","annotations":[]}]},)"
            R"({"type":"function_call","call_id":"c1","name":"f","arguments":"{\"x\":1}"},)"
            R"({"type":"function_call","call_id":"c2","name":"g","arguments":""},)"
            R"({"type":"function_call_output","call_id":"c1","output":"7"},)"
            R"({"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"8"}]}])"),
        R"([{"role":"user","content":"a\nb"},)"
        R"({"role":"assistant","content":"well","reasoning_content":"hm","tool_calls":[)"
        R"({"id":"c1","type":"function","function":{"name":"f","arguments":{"x":1}}},)"
        R"({"id":"c2","type":"function","function":{"name":"g","arguments":{}}}]},)"
        R"({"role":"tool","tool_call_id":"c1","content":"7"},)"
        R"({"role":"tool","tool_call_id":"c2","content":"8"}])");
}

TEST(ResponsesRequest, ArgumentsThatAreNoObjectStayTheirText) {
    EXPECT_NE(messages_of(R"("input":[{"type":"function_call","call_id":"c","name":"f","arguments":"[1"}])")
                  .find(R"("arguments":"[1")"),
              std::string::npos);
}

TEST(ResponsesRequest, WordsOfErrorsAndListsAreTheBodys) {
    Error error = refused(R"("input":"a","ignore_eos":true,"text":{"format":{"type":"json_object"}})");
    EXPECT_EQ(error.message, "ignore_eos: an answer that text.format shapes has an end");
    ResponsesRequest request = parsed(
        R"({"input":[{"role":"user","content":"a","mood":"good"}],"tools":[{"type":"function","name":"f","colour":1,)"
        R"("parameters":{"properties":{"a":{"items":{},"uniqueItems":true}}},"strict":true}],)"
        R"("text":{"format":{"type":"json_schema","name":"x","schema":{"uniqueItems":true},"foo":1}}})");
    EXPECT_EQ(request.generate.ignored_fields,
              (std::vector<std::string>{"input[0].mood", "text.format.foo", "tools[0].colour"}));
    EXPECT_EQ(
        request.generate.not_enforced,
        (std::vector<std::string>{"text.format.schema.uniqueItems", "tools[0].parameters.properties.a.uniqueItems"}));
    EXPECT_TRUE(request.generate.is_response_format);
    ASSERT_EQ(request.generate.tools.size(), 1u);
}

TEST(ResponsesRequest, ErrorsNameTheFieldsOfTheBody) {
    EXPECT_EQ(refused(R"("model":"x")").param, "input");
    EXPECT_EQ(refused(R"("input":[])").param, "input");
    EXPECT_EQ(refused(R"("input":[3])").param, "input[0]");
    EXPECT_EQ(refused(R"("input":[{"role":"user"}])").param, "input[0].content");
    EXPECT_EQ(refused(R"("input":[{"role":"robot","content":"a"}])").param, "input[0].role");
    EXPECT_EQ(refused(R"("input":"a","max_output_tokens":0)").param, "max_output_tokens");
    EXPECT_EQ(refused(R"("input":"a","temperature":9)").param, "temperature");
    EXPECT_EQ(refused(R"("input":"a","tools":[{"type":"function","name":"f"},{"type":"function","name":"f"}])").param,
              "tools[1].name");
    EXPECT_EQ(refused(R"("input":"a","tool_choice":{"type":"function","name":"f"})").param, "tool_choice.name");
    EXPECT_EQ(refused(R"("input":"a","text":{"format":{"type":"json_schema","name":"x"}})").param,
              "text.format.schema");
    EXPECT_EQ(refused(R"("input":"a","text":{"format":{"type":"xml"}})").param, "text.format.type");
    EXPECT_EQ(refused(R"("input":"a","input":"b")").code, ErrorCode::kInvalidRequest);
}

TEST(ResponsesRequest, WhatIsNotDoneIsRefusedByName) {
    const std::pair<const char*, const char*> cases[] = {
        {R"("store":true)", "store"},
        {R"("previous_response_id":"resp_1")", "previous_response_id"},
        {R"("conversation":"conv_1")", "conversation"},
        {R"("background":true)", "background"},
        {R"("truncation":"auto")", "truncation"},
        {R"("include":["no.such.thing"])", "include[0]"},
        {R"("context_management":[{"type":"compaction"}])", "context_management"},
        {R"("tools":[{"type":"web_search"}])", "tools[0].type"},
        {R"("tool_choice":{"type":"mcp"})", "tool_choice.type"},
        {R"("prompt":{"id":"p"})", "prompt"},
    };
    for (const auto& [fields, param] : cases) {
        Error error = refused(std::string(R"("input":"a",)") + fields);
        EXPECT_EQ(error.code, ErrorCode::kUnsupportedParameter) << fields;
        EXPECT_EQ(error.param, param) << error.message;
    }
    const char* items[] = {
        R"({"role":"user","content":[{"type":"input_image","image_url":"x"}]})",
        R"({"type":"item_reference","id":"x"})",
        R"({"type":"reasoning","id":"x","summary":[],"encrypted_content":"x"})",
    };
    for (const char* item : items)
        EXPECT_EQ(refused(std::string(R"("input":[)") + item + "]").code, ErrorCode::kUnsupportedParameter);
}

TEST(ResponsesRequest, ThoughtsAreATextOrParts) {
    EXPECT_EQ(parsed(R"({"input":[{"type":"reasoning","content":"hm"},{"role":"assistant","content":"a"}]})")
                  .generate.messages_json,
              R"([{"role":"assistant","content":"a","reasoning_content":"hm"}])");
    for (const char* content : {"3", "true", R"({"text":"x"})"}) {
        Error error = refused(std::string(R"("input":[{"type":"reasoning","summary":[],"content":)") + content + "}]");
        EXPECT_EQ(error.param, "input[0].content") << content;
    }
}

TEST(ResponsesRequest, ValuesThatChangeNothingAreTakenAndUnknownFieldsListed) {
    ResponsesRequest request = parsed(
        R"({"input":"a","store":false,"background":false,"truncation":"disabled","reasoning":{"effort":null},)"
        R"("service_tier":"auto","metadata":{"k":"v"},"previous_response_id":null,"nonsense":1,"min_p":0.1,"adapter":"x"})");
    EXPECT_EQ(request.generate.ignored_fields, std::vector<std::string>{"nonsense"});
    EXPECT_EQ(request.metadata_json, R"({"k":"v"})");
    EXPECT_FLOAT_EQ(*request.generate.min_p, 0.1f);
    EXPECT_EQ(request.generate.adapters->at(0).name, "x");
}

TEST(ResponsesRequest, HintsChangeNothingAndAreListed) {
    ResponsesRequest request = parsed(
        R"({"input":"a","service_tier":"flex","reasoning":{"effort":"high","summary":"auto"},"max_tool_calls":3,)"
        R"("text":{"verbosity":"low"},"context_management":{},"include":["reasoning.encrypted_content","message.output_text.logprobs"]})");
    EXPECT_EQ(request.generate.ignored_fields,
              (std::vector<std::string>{"service_tier", "max_tool_calls", "context_management", "reasoning.effort",
                                        "reasoning.summary", "text.verbosity", "include[0]"}));
    EXPECT_TRUE(request.with_logprobs);
    EXPECT_TRUE(parsed(R"({"input":"a","text":{"verbosity":"medium"}})").generate.ignored_fields.empty());
}

TEST(ResponsesRequest, ToolsAndFormatsAreThoseOfChats) {
    ResponsesRequest request = parsed(
        R"({"input":"a","tools":[{"type":"function","name":"f","parameters":{"type":"object"},"strict":true},)"
        R"({"type":"function","name":"g"}],"tool_choice":{"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"g"}]}})");
    EXPECT_EQ(request.generate.tools_json, R"([{"type":"function","function":{"name":"g"}}])");
    EXPECT_EQ(request.generate.tool_choice, ToolChoice::kRequired);
    ResponsesRequest shaped = parsed(
        R"({"input":"a","text":{"format":{"type":"json_schema","name":"x","schema":{"type":"null"},"strict":true}},)"
        R"("include":["message.output_text.logprobs"],"top_logprobs":2,"max_output_tokens":9})");
    ASSERT_TRUE(shaped.generate.structure);
    EXPECT_EQ(shaped.generate.structure->source.substr(0, 14), R"({"type":"null")");
    EXPECT_EQ(shaped.generate.names.original(shaped.generate.structure->param), "text.format.schema");
    EXPECT_EQ(shaped.generate.n_logprobs, 2u);
    EXPECT_EQ(shaped.generate.n_tokens_max, 9u);
}

AnswerBlocks numbered_blocks() {
    return AnswerBlocks([n = 0](BlockKind) mutable { return "b" + std::to_string(n++); });
}
ChoicePart part_of(std::string reasoning, std::string text, std::vector<ToolCallPart> calls = {},
                   std::string finish_reason = {}) {
    ChoicePart part;
    part.reasoning = std::move(reasoning);
    part.text = std::move(text);
    part.tool_calls = std::move(calls);
    part.finish_reason = std::move(finish_reason);
    return part;
}

TEST(AnswerBlocks, TextStandsWhereItIsAmongTheCalls) {
    const auto shown = [](const std::vector<ChoicePart>& parts) {
        AnswerBlocks blocks = numbered_blocks();
        for (const ChoicePart& part : parts) blocks.take(part);
        std::string text;
        for (const AnswerBlock& block : blocks.blocks())
            text += "[" + block.name + (block.name.empty() ? "" : ":") + block.text + "]";
        return text;
    };
    const std::string expected = "[Well. ][f:{}][ So ][g:{1}][.]";
    EXPECT_EQ(
        shown({part_of("", "Well.  So .",
                       {{0, "c0", "f", "{}", false, 6}, {1, "c1", "g", "{1", false, 10}, {1, "", "", "}", false, 10}},
                       "stop")}),
        expected);
    // However the answer comes in parts.
    EXPECT_EQ(shown({part_of("", "Well. "), part_of("", " ", {{0, "c0", "f", "{}"}}),
                     part_of("", "So .", {{1, "c1", "g", "{1}", false, 3}}), part_of("", "", {}, "stop")}),
              expected);
}

TEST(AnswerBlocks, FollowEachOtherAndOnlyTheLastIsOpen) {
    AnswerBlocks blocks = numbered_blocks();
    using What = BlockChange::What;
    std::vector<std::pair<What, uint32_t>> seen;
    auto take = [&](const ChoicePart& part) {
        for (const BlockChange& change : blocks.take(part)) seen.emplace_back(change.what, change.block);
    };
    take(part_of("hm", ""));
    take(part_of("m", "So"));
    take(part_of("", "!", {{0, "c0", "f", "{", false, 1}}));
    take(part_of("", "", {{0, "", "", "}"}, {1, "c1", "g", "{}"}}));
    take(part_of("", "", {}, "tool_calls"));
    const std::vector<std::pair<What, uint32_t>> expected = {
        {What::kBegins, 0}, {What::kGrows, 0}, {What::kGrows, 0},  {What::kEnds, 0},   {What::kBegins, 1},
        {What::kGrows, 1},  {What::kGrows, 1}, {What::kEnds, 1},   {What::kBegins, 2}, {What::kGrows, 2},
        {What::kGrows, 2},  {What::kEnds, 2},  {What::kBegins, 3}, {What::kGrows, 3},  {What::kEnds, 3}};
    EXPECT_EQ(seen, expected);
    ASSERT_EQ(blocks.blocks().size(), 4u);
    EXPECT_EQ(blocks.blocks()[0].text, "hmm");
    EXPECT_EQ(blocks.blocks()[1].text, "So!");
    EXPECT_EQ(blocks.blocks()[2].text, "{}");
    EXPECT_EQ(blocks.blocks()[3].call_id, "c1");
    EXPECT_FALSE(blocks.blocks()[3].cut);
}

TEST(AnswerBlocks, TextBehindACallThatIsBeingWrittenComesAfterIt) {
    AnswerBlocks blocks = numbered_blocks();
    blocks.take(part_of("", "", {{0, "c0", "f", "{"}}));
    blocks.take(part_of("", "done", {{0, "", "", "}"}}, "length"));
    ASSERT_EQ(blocks.blocks().size(), 2u);
    EXPECT_EQ(blocks.blocks()[0].text, "{}");
    EXPECT_EQ(blocks.blocks()[1].text, "done");
    EXPECT_TRUE(blocks.blocks()[1].cut);
}

struct Event {
    std::string name;
    JsonDocument data;
};
std::vector<Event> events_of(const std::string& bytes) {
    std::vector<Event> events;
    for (size_t at = 0; at < bytes.size();) {
        size_t end = bytes.find("\n\n", at);
        std::string text = bytes.substr(at, end - at);
        at = end + 2;
        size_t line = text.find('\n');
        EXPECT_TRUE(text.starts_with("event: "));
        EXPECT_EQ(text.substr(line + 1, 6), "data: ");
        Result<JsonDocument> data = parse_json(text.substr(line + 7));
        EXPECT_TRUE(data.ok()) << text;
        events.push_back({text.substr(7, line - 7), std::move(*data)});
    }
    return events;
}

TEST(ResponsesRequest, CustomToolsAreFunctionsOfOneText) {
    ResponsesRequest request = parsed(
        R"({"input":[{"role":"user","content":"a"},{"type":"custom_tool_call","call_id":"c","name":"sh","input":"ls \"x\""},)"
        R"({"type":"custom_tool_call_output","call_id":"c","output":"y"}],)"
        R"("tools":[{"type":"custom","name":"sh","description":"Runs.","format":{"type":"text"}}],"tool_choice":{"type":"custom","name":"sh"}})");
    EXPECT_EQ(
        request.generate.messages_json,
        R"([{"role":"user","content":"a"},{"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function",)"
        R"("function":{"name":"sh","arguments":{"input":"ls \"x\""}}}]},{"role":"tool","tool_call_id":"c","content":"y"}])");
    EXPECT_EQ(request.generate.tools_json,
              R"([{"type":"function","function":{"name":"sh","description":"Runs.","parameters":{"type":"object",)"
              R"("properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}}}])");
    EXPECT_EQ(request.generate.tool_choice, ToolChoice::kNamed);
    Error grammar = refused(
        R"("input":"a","tools":[{"type":"custom","name":"f","format":{"type":"grammar","syntax":"lark","definition":"x"}}])");
    EXPECT_EQ(grammar.param, "tools[0].format");
    EXPECT_EQ(grammar.code, ErrorCode::kUnsupportedParameter);
}

TEST(ResponsesEvents, OfACustomToolHaveItsTextAtTheEnd) {
    ResponsesRequest request = parsed(R"({"input":"a","tools":[{"type":"custom","name":"sh"}]})");
    ResponseHead head;
    ResponsesEvents events({head, request});
    AnswerBlocks blocks = numbered_blocks();
    std::string bytes;
    const ChoicePart parts[] = {part_of("", "", {{0, "c0", "sh", "{\"inp"}}),
                                part_of("", "", {{0, "", "", "ut\": \"l\\ns\"}"}}, "tool_calls")};
    for (const ChoicePart& part : parts) {
        for (const BlockChange& change : blocks.take(part)) bytes += events.change(blocks.blocks(), change);
    }
    std::vector<Event> all = events_of(bytes);
    std::string names;
    for (const Event& event : all) names += event.name.substr(9) + " ";
    EXPECT_EQ(names, "output_item.added custom_tool_call_input.delta custom_tool_call_input.done output_item.done ");
    EXPECT_EQ(*all[1].data.root().string_or("delta", ""), "l\ns");
    EXPECT_EQ(*all[2].data.root().string_or("input", ""), "l\ns");
    EXPECT_EQ(
        all[3].data.root().find("item")->dump(),
        R"({"id":"b0","type":"custom_tool_call","call_id":"c0","name":"sh","input":"l\ns","status":"completed"})");
}

TEST(ResponsesEvents, AreNumberedNamedAndAddUpToTheWholeAnswer) {
    ResponsesRequest request = parsed(R"({"input":"a"})");
    ResponseHead head;
    head.id = "resp_1";
    head.model = "base";
    ResponsesEvents events({head, request});
    AnswerBlocks blocks = numbered_blocks();
    std::string bytes = events.begin();
    const ChoicePart parts[] = {part_of("hm", ""), part_of("", "So"), part_of("", "", {{0, "c0", "f", "{\"x\""}}),
                                part_of("", "", {{0, "", "", ":1}"}}, "tool_calls")};
    for (const ChoicePart& part : parts) {
        for (const BlockChange& change : blocks.take(part)) bytes += events.change(blocks.blocks(), change);
    }
    ResponsesEnd end{"tool_calls", {}, {5, 7, 0}, 2, 1700000000};
    bytes += events.end(blocks.blocks(), end);
    std::vector<Event> all = events_of(bytes);
    std::string names;
    for (size_t i = 0; i < all.size(); ++i) {
        JsonValue data = all[i].data.root();
        EXPECT_EQ(*data.int_or("sequence_number", -1), int64_t(i));
        EXPECT_EQ(*data.string_or("type", ""), all[i].name);
        names += all[i].name.substr(9) + " ";
    }
    EXPECT_EQ(names, "created in_progress output_item.added content_part.added reasoning_text.delta "
                     "reasoning_text.done content_part.done output_item.done "
                     "output_item.added content_part.added output_text.delta output_text.done "
                     "content_part.done output_item.done "
                     "output_item.added function_call_arguments.delta function_call_arguments.delta "
                     "function_call_arguments.done output_item.done completed ");
    JsonValue last = *all.back().data.root().find("response");
    EXPECT_EQ(last.dump(), responses_object({head, request}, blocks.blocks(), end));
    auto output = *last.find("output")->as_array();
    ASSERT_EQ(output.size(), 3u);
    EXPECT_EQ(*output[2].string_or("arguments", ""), "{\"x\":1}");
    EXPECT_EQ(*last.find("usage")->int_or("total_tokens", 0), 12);
}

TEST(ResponsesObject, SaysWhyAnAnswerIsNotWhole) {
    ResponsesRequest request = parsed(R"({"input":"a","max_output_tokens":3})");
    ResponseHead head;
    AnswerBlocks blocks = numbered_blocks();
    blocks.take(part_of("", "So", {}, "length"));
    auto shown = [&](const ResponsesEnd& end) {
        return std::move(*parse_json(responses_object({head, request}, blocks.blocks(), end)));
    };
    JsonDocument cut = shown({.finish_reason = "length"});
    EXPECT_EQ(*cut.root().string_or("status", ""), "incomplete");
    EXPECT_EQ(*cut.root().find("incomplete_details")->string_or("reason", ""), "max_output_tokens");
    EXPECT_EQ(*cut.root().find("output")->as_array()->at(0).string_or("status", ""), "incomplete");
    EXPECT_EQ(*cut.root().int_or("max_output_tokens", 0), 3);
    JsonDocument failed = shown({.error = make_error(ErrorCode::kInternal, "broke")});
    EXPECT_EQ(*failed.root().string_or("status", ""), "failed");
    EXPECT_EQ(*failed.root().find("error")->string_or("message", ""), "broke");
}

}  // namespace
}  // namespace lorad::proto::responses_test
