// What answers have to look like: schemas, grammars, tools.
#include <gtest/gtest.h>

#include "proto/generate_request.h"
#include "proto/json.h"

namespace lorad::proto::generate_tools_test {
namespace {

Result<GenerateRequest> chat(const std::string& fields) {
    return parse_generate_request(
        R"({"messages":[{"role":"user","content":"hi"}],)" + fields + "}", ApiKind::kChat, 1000);
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
    for (const Case& c : std::vector<Case>{
             {R"("response_format":{"type":"json_object"})", StructureKind::kJsonSchema,
              R"({"type":"object"})", "response_format"},
             {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"type":"array"}}})",
              StructureKind::kJsonSchema, R"({"type":"array"})", "response_format.json_schema.schema"},
             {R"("structured_outputs":{"json":"{\"type\":\"null\"}"})", StructureKind::kJsonSchema,
              R"({"type":"null"})", "structured_outputs.json"},
             {R"("structured_outputs":{"regex":"a+"})", StructureKind::kRegex, "a+",
              "structured_outputs.regex"},
             {R"("guided_choice":["a.b","c"])", StructureKind::kRegex, R"((?:a\.b|c))", "guided_choice"},
             {R"("guided_grammar":"start: \"x\"")", StructureKind::kLark, "start: \"x\"", "guided_grammar"}}) {
        auto request = chat(c.fields);
        ASSERT_TRUE(request.ok()) << request.error().message;
        ASSERT_TRUE(request->structure) << c.fields;
        EXPECT_EQ(request->structure->kind, c.kind) << c.fields;
        EXPECT_EQ(request->structure->source, c.source);
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
             {R"("response_format":{"type":"json_schema","json_schema":{"name":"n"}})", "response_format.json_schema.schema"},
             {R"("response_format":{"type":"json_schema","json_schema":{"schema":[]}})", "response_format.json_schema.schema"},
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
             {R"("tools":[{"type":"function","function":{"name":"f","parameters":[]}}])", "tools[0].function.parameters"},
             {R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}])",
              "tools[1].function.name"}}) {
        auto refused = chat(fields);
        ASSERT_FALSE(refused.ok()) << fields.substr(0, 200);
        EXPECT_EQ(refused.error().param, param) << refused.error().message;
        EXPECT_EQ(refused.error().code, ErrorCode::kInvalidRequest);
    }
    EXPECT_EQ(chat(R"("structured_outputs":{"structural_tag":"x"})").error().code,
              ErrorCode::kUnsupportedParameter);
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
              R"({"type":"object","properties":{"p":{"$ref":"#/$defs/P"}},"$defs":{"P":{"type":"integer"}},)"
              R"("x-guidance":{"whitespace_pattern":"[ ]"}})");

    auto required = chat(kTools + R"(,"tool_choice":"required","parallel_tool_calls":false)");
    ASSERT_TRUE(required.ok()) << required.error().message;
    auto schema = parse_json(required->structure->source);
    ASSERT_TRUE(schema.ok()) << required->structure->source;
    EXPECT_EQ(*schema->root().int_or("maxItems", 0), 1);
    EXPECT_EQ(schema->root().find("items")->find("anyOf")->size(), 2u);
    EXPECT_TRUE(schema->root().find("$defs")->has("P")) << "references look at the root";
}

}  // namespace
}  // namespace lorad::proto::generate_tools_test
