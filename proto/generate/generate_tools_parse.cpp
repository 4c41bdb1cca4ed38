// The functions that a chat may call, and what an answer looks like that has to be calls.
#include <algorithm>
#include <set>

#include "proto/base/format.h"
#include "proto/generate/generate_request_parts.h"
#include "proto/known_fields.h"
#include "proto/schema/schema.h"

namespace lorad::proto {
namespace {

constexpr size_t kToolsMax = 128;
constexpr size_t kToolNameBytesMax = 256;
struct Tool {
    std::string name;
    std::optional<JsonValue> parameters;
    std::optional<bool> strict;  // the client's value
};

// The same error; a path alone does not say which function it is about.
Error of_function(const Tool& tool, Error error) {
    error.message += format(" (function {})", json_quote_short(tool.name));
    return error;
}

Result<std::vector<Tool>> parse_tool_list(const JsonValue& list, std::vector<std::string>& ignored) {
    static constexpr KnownField kFields[] = {{"type"}, {"function"}};
    static constexpr KnownField kFunctionFields[] = {
        {"name"}, {"description"}, {"parameters"}, {"strict"}, {"input_examples"}};
    TRY_ASSIGN(std::vector<JsonValue> elements, list.as_array());
    if (elements.size() > kToolsMax)
        return list.error(format("expected at most {} tools, found {}", kToolsMax, elements.size()));
    std::vector<Tool> tools;
    std::set<std::string> names;
    for (const JsonValue& element : elements) {
        TRY_ASSIGN(JsonValue type, element.require("type"));
        if (!is_text(type, "function")) return type.error(format("expected \"function\", found {}", type.describe()));
        TRY_ASSIGN(JsonValue function, element.require("function"));
        TRY(check_fields(element, kFields, ignored));
        TRY(check_fields(function, kFunctionFields, ignored));
        TRY_ASSIGN(JsonValue name, function.require("name"));
        TRY_ASSIGN(std::string_view text, name.as_string());
        if (text.empty() || text.size() > kToolNameBytesMax)
            return name.error(format("expected 1 to {} bytes", kToolNameBytesMax));
        if (!names.emplace(text).second) return name.error("there are two tools of this name");
        TRY(function.string_or("description", ""));
        Tool tool{std::string(text), function.find("parameters"), std::nullopt};
        if (function.find("strict")) {
            TRY_ASSIGN(tool.strict, function.bool_or("strict", false));
        }
        if (tool.parameters && !tool.parameters->is_object()) {
            return of_function(
                tool, tool.parameters->error(format("expected a JSON schema, found {}", tool.parameters->describe())));
        }
        tools.push_back(std::move(tool));
    }
    return tools;
}

// Returns the grammar's schema of the arguments; a function without parameters has none. Clients that leave
// "additionalProperties" out mean closed objects, so they are closed unless the schema need not be followed strictly.
Result<GrammarSchema> arguments_of(const Tool& tool, size_t index, GenerateRequest& request) {
    if (!tool.parameters) return GrammarSchema{R"({"type":"object","additionalProperties":false})"};
    SchemaUse use{
        .is_arguments = true, .is_closed = tool.strict.value_or(true), .definition_prefix = format("t{}_", index)};
    Result<GrammarSchema> schema = schema_for_grammar(*tool.parameters, use, request.not_enforced);
    if (!schema.ok()) return of_function(tool, schema.error());
    return schema;
}

// [{"name": NAME, "arguments": {...}}, ...] with at least one.
Result<std::string> calls_schema(const std::vector<Tool>& tools, bool parallel, GenerateRequest& request) {
    GrammarSchema calls;
    JsonWriter writer;
    writer.begin_object().field("type", "array").field("minItems", 1);
    if (!parallel) writer.field("maxItems", 1);
    writer.key("items").begin_object().key("anyOf").begin_array();
    for (size_t i = 0; i < tools.size(); ++i) {
        TRY_ASSIGN(GrammarSchema arguments, arguments_of(tools[i], i, request));
        writer.begin_object().field("type", "object").key("properties").begin_object();
        writer.key("name").begin_object().field("const", tools[i].name).end_object();
        writer.key("arguments").raw(arguments.root);
        writer.end_object().key("required").begin_array().value("name").value("arguments");
        writer.end_array().field("additionalProperties", false).end_object();
        calls.definitions.insert(calls.definitions.end(), arguments.definitions.begin(), arguments.definitions.end());
        request.tools.push_back({tools[i].name, std::move(arguments), static_cast<uint32_t>(i)});
    }
    calls.root = writer.end_array().end_object().end_object().take();
    return calls.whole(kOneLineSwitches);
}

Status parse_tool_choice(const JsonValue& root, const std::vector<Tool>& tools, GenerateRequest& request) {
    static constexpr KnownField kFields[] = {{"type"}, {"function"}};
    static constexpr KnownField kFunctionFields[] = {{"name"}};
    std::optional<JsonValue> choice = root.find("tool_choice");
    request.tool_choice = tools.empty() ? ToolChoice::kNone : ToolChoice::kAuto;
    if (!choice) return ok_status();
    if (choice->is_string()) {
        if (is_text(*choice, "none")) {
            request.tool_choice = ToolChoice::kNone;
        } else if (is_text(*choice, "required")) {
            request.tool_choice = ToolChoice::kRequired;
        } else if (!is_text(*choice, "auto")) {
            return choice->error(
                format("expected \"none\", \"auto\", \"required\" or a function, found {}", choice->describe()));
        }
    } else {
        if (!choice->is_object())
            return choice->error(format("expected a text or an object, found {}", choice->describe()));
        TRY_ASSIGN(JsonValue type, choice->require("type"));
        if (!is_text(type, "function")) return type.error(format("expected \"function\", found {}", type.describe()));
        TRY_ASSIGN(JsonValue function, choice->require("function"));
        TRY(check_fields(*choice, kFields, request.ignored_fields));
        TRY(check_fields(function, kFunctionFields, request.ignored_fields));
        TRY_ASSIGN(JsonValue name, function.require("name"));
        TRY_ASSIGN(std::string_view text, name.as_string());
        bool is_known = std::any_of(tools.begin(), tools.end(), [&](const Tool& tool) { return tool.name == text; });
        if (!is_known) return name.error("none of the tools has this name");
        request.tool_choice = ToolChoice::kNamed;
        request.forced_function = std::string(text);
    }
    if (tools.empty() && request.tool_choice == ToolChoice::kRequired) return choice->error("there are no tools");
    return ok_status();
}

Error too_large(const JsonValue& list, size_t n_bytes) {
    return list.error(format("expected schemas of at most {} bytes together, found {}", kStructureBytesMax, n_bytes));
}

// For calls that the model may choose to make: their arguments' schemas are read only if a grammar needs them.
Status take_callable(const JsonValue& list, const std::vector<Tool>& tools, GenerateRequest& request) {
    const bool any_strict = std::ranges::any_of(tools, [](const Tool& tool) { return tool.strict.value_or(false); });
    const bool has_grammar = any_strict || request.is_response_format;
    size_t n_bytes = 0;
    for (size_t i = 0; i < tools.size(); ++i) {
        CallableTool callable{tools[i].name, {}, static_cast<uint32_t>(i)};
        if (request.is_response_format || tools[i].strict.value_or(false)) {
            TRY_ASSIGN(callable.arguments, arguments_of(tools[i], i, request));
        } else if (has_grammar) {
            callable.arguments.root = R"({"type":"object"})";
        }
        n_bytes += callable.arguments.whole().size();
        request.tools.push_back(std::move(callable));
    }
    if (n_bytes > kStructureBytesMax) return too_large(list, n_bytes);
    if (any_strict && request.ignore_eos) {
        return make_error(ErrorCode::kInvalidRequest, "ignore_eos: with strict functions an answer has an end",
                          "ignore_eos");
    }
    return ok_status();
}

}  // namespace

Status parse_tools(const JsonValue& root, GenerateRequest& request) {
    TRY(parse_structure(root, request));
    if (request.kind != ApiKind::kChat) return ok_status();
    std::vector<Tool> tools;
    std::optional<JsonValue> list = root.find("tools");
    if (list) {
        TRY_ASSIGN(tools, parse_tool_list(*list, request.ignored_fields));
    }
    TRY(parse_tool_choice(root, tools, request));
    TRY_ASSIGN(bool parallel, root.bool_or("parallel_tool_calls", true));
    TRY_ASSIGN(request.include_reasoning, root.bool_or("include_reasoning", true));
    // A model that may not call is not told of what it could call.
    if (request.tool_choice == ToolChoice::kNone) {
        request.is_response_format = false;
        return ok_status();
    }
    request.tools_json = list->dump();
    request.parallel_tool_calls = parallel;
    if (request.tool_choice == ToolChoice::kAuto) return take_callable(*list, tools, request);
    // The answer that the format is meant for follows the call.
    if (request.structure && !request.is_response_format) {
        return root.find("tool_choice")->error(format("contradicts {}", request.structure->param));
    }
    request.is_response_format = false;
    if (request.ignore_eos) {
        return make_error(ErrorCode::kInvalidRequest, "ignore_eos: a required call has an end", "ignore_eos");
    }
    Structure structure{StructureKind::kJsonSchema, {}, "tools"};
    if (request.tool_choice == ToolChoice::kNamed) {
        for (size_t i = 0; i < tools.size(); ++i) {
            if (tools[i].name != request.forced_function) continue;
            TRY_ASSIGN(GrammarSchema arguments, arguments_of(tools[i], i, request));
            structure.source = arguments.whole(kOneLineSwitches);
            request.tools.push_back({tools[i].name, std::move(arguments), static_cast<uint32_t>(i)});
        }
    } else {
        TRY_ASSIGN(structure.source, calls_schema(tools, parallel, request));
    }
    if (structure.source.size() > kStructureBytesMax) return too_large(*list, structure.source.size());
    request.structure = std::move(structure);
    return ok_status();
}

}  // namespace lorad::proto
