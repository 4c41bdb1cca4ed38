// What answers have to look like: schemas, grammars, tools.
#include <gtest/gtest.h>

#include "proto/generate/generate_request.h"
#include "proto/json/json.h"

namespace lorad::proto::generate_tools_test {
namespace {

Result<GenerateRequest> chat(const std::string& fields) {
    return parse_generate_request(R"({"messages":[{"role":"user","content":"hi"}],)" + fields + "}", ApiKind::kChat,
                                  1000);
}

const std::string kTools =
    R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":)"
    R"({"p":{"$ref":"#/$defs/P"}},"$defs":{"P":{"type":"integer"}}}}},{"type":"function","function":{"name":"g"}}])";

TEST(GenerateTools, StructuresAreSchemasPatternsAndGrammars) {
    struct Case {
        std::string fields;
        StructureKind kind;
        std::string source, param;
    };
    for (
        const Case& c : std::vector<Case>{
            {R"("response_format":{"type":"json_object"})", StructureKind::kJsonSchema, R"({"type":"object")",
             "response_format"},
            {R"("response_format":{"type":"json_object","schema":{"type":"array"}})", StructureKind::kJsonSchema,
             R"({"type":"array")", "response_format.schema"},
            {R"("response_format":{"type":"json_object","schema":true})", StructureKind::kJsonSchema,
             R"({"type":"object")", "response_format.schema"},
            {R"("response_format":{"type":"json_object","json_schema":{"schema":{"properties":{"a":{"const":1}}}}})",
             StructureKind::kJsonSchema, R"({"type":"object","properties":{"a":{"const":1}})",
             "response_format.json_schema.schema"},
            {R"("response_format":{"type":"json_object","json_schema":{"type":"null"}})", StructureKind::kJsonSchema,
             R"({"type":"null")", "response_format.json_schema"},
            {R"("response_format":{"type":"json_schema","schema":{"type":"array"}})", StructureKind::kJsonSchema,
             R"({"type":"array")", "response_format.schema"},
            {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"type":"array"}}})",
             StructureKind::kJsonSchema, R"({"type":"array")", "response_format.json_schema.schema"},
            {R"("structured_outputs":{"json":"{\"type\":\"null\"}"})", StructureKind::kJsonSchema, R"({"type":"null")",
             "structured_outputs.json"},
            {R"("structured_outputs":{"regex":"a+"})", StructureKind::kRegex, "a+", "structured_outputs.regex"},
            {R"("guided_choice":["a.b","c"])", StructureKind::kRegex, R"((?:a\.b|c))", "guided_choice"},
            {R"("guided_grammar":"start: \"x\"")", StructureKind::kLark, "start: \"x\"", "guided_grammar"}}) {
        auto request = chat(c.fields);
        ASSERT_TRUE(request.ok()) << request.error().message;
        ASSERT_TRUE(request->structure) << c.fields;
        EXPECT_EQ(request->structure->kind, c.kind) << c.fields;
        const std::string& source = request->structure->source;
        EXPECT_EQ(source.substr(0, source.find(",\"x-guidance\"")), c.source);
        EXPECT_EQ(request->structure->param, c.param);
        EXPECT_TRUE(request->ignored_fields.empty());
    }
    EXPECT_FALSE(chat(R"("response_format":{"type":"text"})")->structure);
}

TEST(GenerateTools, BadAndContradictoryStructuresAreRefusedByName) {
    for (auto [fields, param] : std::vector<std::pair<std::string, std::string>>{
             {R"("response_format":"json")", "response_format"},
             {R"("response_format":{"type":"xml"})", "response_format.type"},
             {R"("response_format":{"type":"json_schema"})", "response_format.json_schema"},
             {R"("response_format":{"type":"json_schema","json_schema":{"name":"n"}})",
              "response_format.json_schema.schema"},
             {R"("response_format":{"type":"json_schema","json_schema":{"schema":[]}})",
              "response_format.json_schema.schema"},
             {R"("structured_outputs":{})", "structured_outputs"},
             {R"("structured_outputs":{"choice":[]})", "structured_outputs.choice"},
             {R"("structured_outputs":{"choice":["a",""]})", "structured_outputs.choice[1]"},
             {R"("structured_outputs":{"regex":"a","json":{}})", "structured_outputs.json"},
             {R"("structured_outputs":{"grammar":"root ::= \"a"})", "structured_outputs.grammar"},
             {R"("guided_regex":"a","response_format":{"type":"json_object"})", "guided_regex"},
             {R"("guided_regex":"a","ignore_eos":true)", "ignore_eos"},
             {"\"guided_regex\":\"" + std::string(kStructureBytesMax + 1, 'a') + "\"", "guided_regex"},
             {kTools + R"(,"tool_choice":"required","guided_regex":"a")", "tool_choice"},
             {kTools + R"(,"tool_choice":"any")", "tool_choice"},
             {kTools + R"(,"tool_choice":5)", "tool_choice"},
             {kTools + R"(,"tool_choice":{"type":"function","function":{"name":"h"}})", "tool_choice.function.name"},
             {R"("tool_choice":"required")", "tool_choice"},
             {R"("tools":{})", "tools"},
             {R"("tools":[{"type":"x"}])", "tools[0].type"},
             {R"("tools":[{"type":"function"}])", "tools[0].function"},
             {R"("tools":[{"type":"function","function":{"name":""}}])", "tools[0].function.name"},
             {R"("tools":[{"type":"function","function":{"name":"f","parameters":[]}}])",
              "tools[0].function.parameters"},
             {R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}])",
              "tools[1].function.name"}}) {
        auto refused = chat(fields);
        ASSERT_FALSE(refused.ok()) << fields.substr(0, 200);
        EXPECT_EQ(refused.error().param, param) << refused.error().message;
        EXPECT_EQ(refused.error().code, ErrorCode::kInvalidRequest);
    }
    // By its size, before it is converted.
    const std::string large = R"("guided_grammar":"root ::= x)" + std::string(kStructureBytesMax, '?') + "\"";
    EXPECT_NE(chat(large).error().message.find("bytes"), std::string::npos) << chat(large).error().message;
    EXPECT_EQ(chat(R"("structured_outputs":{"structural_tag":"x"})").error().code, ErrorCode::kUnsupportedParameter);
}

TEST(GenerateTools, AChoiceOfToolsBecomesAStructure) {
    auto automatic = chat(kTools);
    ASSERT_TRUE(automatic.ok()) << automatic.error().message;
    EXPECT_EQ(automatic->tool_choice, ToolChoice::kAuto);
    EXPECT_FALSE(automatic->structure);
    EXPECT_FALSE(automatic->tools_json.empty());

    auto none = chat(kTools + R"(,"tool_choice":"none")");
    EXPECT_EQ(none->tool_choice, ToolChoice::kNone);
    EXPECT_TRUE(none->tools_json.empty());

    auto named = chat(kTools + R"(,"tool_choice":{"type":"function","function":{"name":"f"}})");
    EXPECT_EQ(named->tool_choice, ToolChoice::kNamed);
    EXPECT_EQ(named->forced_function, "f");
    EXPECT_EQ(named->structure->source,
              R"({"type":"object","properties":{"p":{"$ref":"#/$defs/t0_0"}},"additionalProperties":false,)"
              R"("x-guidance":{"whitespace_pattern":"[ ]","lenient":true},"$defs":{"t0_0":{"type":"integer"}}})");

    auto required = chat(kTools + R"(,"tool_choice":"required","parallel_tool_calls":false)");
    ASSERT_TRUE(required.ok()) << required.error().message;
    auto schema = parse_json(required->structure->source);
    ASSERT_TRUE(schema.ok()) << required->structure->source;
    EXPECT_EQ(*schema->root().int_or("maxItems", 0), 1);
    EXPECT_EQ(schema->root().find("items")->find("anyOf")->size(), 2u);
    EXPECT_TRUE(schema->root().find("$defs")->has("t0_0")) << "references look at the root";
}

TEST(GenerateTools, EachToolsSchemaHasItsOwnRoot) {
    auto tool = [](const std::string& name, const std::string& type) {
        return R"({"type":"function","function":{"name":")" + name +
               R"(","parameters":{"properties":{"x":{"$ref":"#/$defs/A"},"y":{"$ref":"#"}},"$defs":{"A":{"type":")" +
               type + R"("}}}}})";
    };
    auto request =
        chat("\"tools\":[" + tool("f", "string") + "," + tool("g", "null") + R"(],"tool_choice":"required")");
    ASSERT_TRUE(request.ok()) << request.error().message;
    auto schema = parse_json(request->structure->source);
    ASSERT_TRUE(schema.ok()) << request->structure->source;
    const JsonValue definitions = *schema->root().find("$defs");
    EXPECT_EQ(definitions.find("t0_0")->dump(), R"({"type":"string"})");
    EXPECT_EQ(definitions.find("t1_0")->dump(), R"({"type":"null"})");
    EXPECT_EQ(
        definitions.find("t1_1")->dump(),
        R"({"type":"object","properties":{"x":{"$ref":"#/$defs/t1_0"},"y":{"$ref":"#/$defs/t1_1"}},"additionalProperties":false})");
}

TEST(GenerateTools, StrictFunctionsAndFormatsGiveCallsAGrammar) {
    EXPECT_TRUE(chat(kTools)->tools[0].arguments.root.empty());
    const std::string strict =
        R"("tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":{"properties":{"a":{"type":"null"}}}}},)"
        R"({"type":"function","function":{"name":"g","strict":false,"parameters":{"properties":{"a":{"type":"null"}}}}}])";
    auto automatic = chat(strict);
    ASSERT_EQ(automatic->tools.size(), 2u);
    EXPECT_EQ(automatic->tools[0].arguments.root,
              R"({"type":"object","properties":{"a":{"type":"null"}},"additionalProperties":false})");
    EXPECT_EQ(automatic->tools[1].arguments.root, R"({"type":"object"})");
    EXPECT_FALSE(automatic->structure);
    EXPECT_EQ(chat(strict + R"(,"ignore_eos":true)").error().param, "ignore_eos");
    auto beside = chat(strict + R"(,"response_format":{"type":"json_object"})");
    EXPECT_TRUE(beside->is_response_format);
    EXPECT_EQ(beside->tools[1].arguments.root, R"({"type":"object","properties":{"a":{"type":"null"}}})")
        << "open, since it is not strict";
    // A call first; the format is for the answer that follows it.
    for (const char* choice : {R"("required")", R"({"type":"function","function":{"name":"f"}})"}) {
        auto required = chat(strict + R"(,"response_format":{"type":"json_object"},"tool_choice":)" + choice);
        ASSERT_TRUE(required.ok()) << required.error().message;
        EXPECT_EQ(required->structure->param, "tools");
        EXPECT_FALSE(required->is_response_format);
    }
}

TEST(GenerateTools, UnknownFieldsWithinOthersAreListedByTheirPath) {
    auto request = chat(
        R"("tools":[{"type":"function","x":1,"function":{"name":"f","y":1}}],"tool_choice":{"type":"function","z":1,"function":{"name":"f"}},)"
        R"("response_format":{"type":"json_schema","foo":1,"json_schema":{"schema":{},"bar":1}},"stream":true,"stream_options":{"baz":1})");
    ASSERT_TRUE(request.ok()) << request.error().message;
    EXPECT_EQ(request->ignored_fields,
              (std::vector<std::string>{"response_format.foo", "response_format.json_schema.bar", "tools[0].x",
                                        "tools[0].function.y", "tool_choice.z", "stream_options.baz"}));
    auto history = parse_generate_request(
        R"({"messages":[{"role":"user","content":[{"type":"text","text":"a","p":1}],"q":1,"audio":null,"annotations":[]},)"
        R"({"role":"assistant","tool_calls":[{"id":"c","r":1,"function":{"name":"f","arguments":"","s":1}}]}]})",
        ApiKind::kChat, 1000);
    ASSERT_TRUE(history.ok()) << history.error().message;
    EXPECT_EQ(history->ignored_fields,
              (std::vector<std::string>{"messages[0].q", "messages[0].content[0].p", "messages[1].tool_calls[0].r",
                                        "messages[1].tool_calls[0].function.s"}));
}

// A function without arguments may be called so: templates get an object all the same.
TEST(GenerateTools, CallsOfAHistoryNeedNoArguments) {
    for (const std::string arguments : {"", R"(,"arguments":null)", R"(,"arguments":"")", R"(,"arguments":{})"}) {
        auto request = parse_generate_request(
            R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f")" +
                arguments + "}}]}]}",
            ApiKind::kChat, 1000);
        ASSERT_TRUE(request.ok()) << request.error().message;
        EXPECT_NE(request->messages_json.find(R"("function":{"name":"f","arguments":{}})"), std::string::npos)
            << request->messages_json;
    }
}

TEST(GenerateTools, WhatIsWrongWithASchemaIsToldWithTheFunctionsName) {
    const std::string two =
        R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g","parameters":)";
    for (const auto& [schema, param] : std::vector<std::pair<std::string, std::string>>{
             {"5", "tools[1].function.parameters"},
             {R"({"properties":{"a":{"$ref":"#/nowhere"}}})", "tools[1].function.parameters.properties.a.$ref"},
             {R"({"type":"string"})", "tools[1].function.parameters.type"}}) {
        auto refused = chat(two + schema + R"(}}],"tool_choice":"required")");
        ASSERT_FALSE(refused.ok()) << schema;
        EXPECT_EQ(refused.error().param, param);
        EXPECT_TRUE(refused.error().message.starts_with(param + ": ")) << refused.error().message;
        EXPECT_TRUE(refused.error().message.ends_with(R"( (function "g"))")) << refused.error().message;
    }
}

}  // namespace
}  // namespace lorad::proto::generate_tools_test
