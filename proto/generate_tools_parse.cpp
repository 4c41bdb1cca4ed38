// What an answer has to look like: a schema or grammar of the client's, or calls of its tools.
#include <algorithm>
#include <set>

#include "proto/base/format.h"
#include "proto/gbnf.h"
#include "proto/generate_request_parts.h"

namespace lorad::proto {
namespace {

constexpr size_t kToolsMax = 128;
constexpr size_t kToolNameBytesMax = 256;
constexpr size_t kChoiceTextsMax = 4096;

Result<Structure> schema_structure(const JsonValue& schema, std::string param) {
    // Clients of vLLM may send the schema as a text.
    std::string source;
    if (schema.is_string()) {
        source = *schema.as_string();
    } else if (schema.is_object() || schema.is_bool()) {
        source = schema.dump();
    } else {
        return schema.error(format("expected a JSON schema, found {}", schema.describe()));
    }
    return Structure{StructureKind::kJsonSchema, std::move(source), std::move(param)};
}

// A regular expression for one of these texts.
Result<Structure> choice_structure(const JsonValue& list, std::string param) {
    TRY_ASSIGN(std::vector<JsonValue> elements, list.as_array());
    if (elements.empty() || elements.size() > kChoiceTextsMax) {
        return list.error(
            format("expected 1 to {} texts, found {}", kChoiceTextsMax, elements.size()));
    }
    std::string pattern;
    for (const JsonValue& element : elements) {
        TRY_ASSIGN(std::string_view text, element.as_string());
        if (text.empty()) return element.error("expected a text, found an empty one");
        pattern += pattern.empty() ? "(?:" : "|";
        for (char byte : text) {
            bool is_mark = std::string_view("\\.+*?()|[]{}^$#&-~/").find(byte) != std::string::npos;
            if (is_mark) pattern += '\\';
            pattern += byte;
        }
    }
    return Structure{StructureKind::kRegex, pattern + ")", std::move(param)};
}

Result<Structure> text_structure(const JsonValue& value, StructureKind kind, std::string param) {
    TRY_ASSIGN(std::string_view text, value.as_string());
    if (text.empty()) return value.error("expected a text, found an empty one");
    if (kind == StructureKind::kLark && looks_like_gbnf(text)) {
        Result<std::string> lark = gbnf_to_lark(text);
        if (!lark.ok()) return value.error(lark.error().message);
        return Structure{kind, std::move(*lark), std::move(param)};
    }
    return Structure{kind, std::string(text), std::move(param)};
}

Result<std::optional<Structure>> response_format(const JsonValue& root) {
    std::optional<JsonValue> wanted = root.find("response_format");
    if (!wanted) return std::optional<Structure>();
    if (!wanted->is_object())
        return wanted->error(format("expected an object, found {}", wanted->describe()));
    TRY_ASSIGN(JsonValue type, wanted->require("type"));
    TRY_ASSIGN(std::string_view name, type.as_string());
    if (name == "text") return std::optional<Structure>();
    if (name == "json_object") {
        return std::optional(Structure{StructureKind::kJsonSchema, R"({"type":"object"})",
                                       "response_format"});
    }
    if (name != "json_schema") {
        return type.error(
            format("expected \"text\", \"json_object\" or \"json_schema\", found {}",
                   type.describe()));
    }
    TRY_ASSIGN(JsonValue outer, wanted->require("json_schema"));
    TRY(outer.bool_or("strict", true));
    TRY(outer.string_or("name", ""));
    TRY_ASSIGN(JsonValue schema, outer.require("schema"));
    TRY_ASSIGN(Structure structure, schema_structure(schema, schema.path()));
    return std::optional(std::move(structure));
}

Result<Structure> one_structure(const JsonValue& value, std::string_view kind) {
    std::string path = value.path();
    if (kind == "json") return schema_structure(value, path);
    if (kind == "regex") {
        TRY_ASSIGN(Structure regex, text_structure(value, StructureKind::kRegex, path));
        // A parser takes memory for each group before it finds that there are too many: they are counted here.
        constexpr ptrdiff_t kGroupsMax = 4096;
        if (std::ranges::count(regex.source, '(') > kGroupsMax) return value.error(format("expected at most {} groups", kGroupsMax));
        return regex;
    }
    if (kind == "choice") return choice_structure(value, path);
    return text_structure(value, StructureKind::kLark, path);
}

// Each way of asking, in turn; two at a time contradict each other.
Status parse_structure(const JsonValue& root, GenerateRequest& request) {
    TRY_ASSIGN(request.structure, response_format(root));
    auto take = [&](const JsonValue& value, std::string_view kind) -> Status {
        if (request.structure) {
            return value.error(
                format("{} asks for something else already: use one of them",
                       request.structure->param));
        }
        TRY_ASSIGN(request.structure, one_structure(value, kind));
        return ok_status();
    };
    if (std::optional<JsonValue> outputs = root.find("structured_outputs")) {
        TRY_ASSIGN(std::vector<JsonMember> members, outputs->as_object());
        for (const JsonMember& member : members) {
            if (member.value.is_null()) continue;
            if (member.key == "json_object") {
                TRY_ASSIGN(bool wanted, member.value.as_bool());
                if (!wanted) continue;
                if (request.structure) return member.value.error("one of them is enough");
                request.structure = Structure{StructureKind::kJsonSchema, R"({"type":"object"})",
                                              member.value.path()};
            } else if (member.key == "json" || member.key == "regex" || member.key == "choice" ||
                       member.key == "grammar") {
                TRY(take(member.value, member.key));
            } else {
                return make_error(ErrorCode::kUnsupportedParameter,
                                  format("{}: this server knows json, json_object, regex, choice "
                                         "and grammar",
                                         member.value.path()),
                                  member.value.path());
            }
        }
        if (!request.structure)
            return outputs->error("expected one of json, json_object, regex, choice and grammar");
    }
    for (std::string_view kind : {"json", "regex", "choice", "grammar"}) {
        std::optional<JsonValue> value = root.find(format("guided_{}", kind));
        if (value) TRY(take(*value, kind));
    }
    if (!request.structure) return ok_status();
    if (request.structure->source.size() > kStructureBytesMax) {
        return make_error(ErrorCode::kInvalidRequest,
                          format("{}: expected at most {} bytes, found {}",
                                 request.structure->param, kStructureBytesMax,
                                 request.structure->source.size()),
                          request.structure->param);
    }
    if (request.ignore_eos) {
        return make_error(ErrorCode::kInvalidRequest,
                          format("ignore_eos: an answer that {} shapes has an end",
                                 request.structure->param),
                          "ignore_eos");
    }
    return ok_status();
}

struct Tool {
    std::string name;
    std::optional<JsonValue> parameters;
};

Result<std::vector<Tool>> parse_tool_list(const JsonValue& list) {
    TRY_ASSIGN(std::vector<JsonValue> elements, list.as_array());
    if (elements.size() > kToolsMax)
        return list.error(format("expected at most {} tools, found {}", kToolsMax, elements.size()));
    std::vector<Tool> tools;
    std::set<std::string> names;
    for (const JsonValue& element : elements) {
        TRY_ASSIGN(JsonValue type, element.require("type"));
        if (!is_text(type, "function"))
            return type.error(format("expected \"function\", found {}", type.describe()));
        TRY_ASSIGN(JsonValue function, element.require("function"));
        TRY_ASSIGN(JsonValue name, function.require("name"));
        TRY_ASSIGN(std::string_view text, name.as_string());
        if (text.empty() || text.size() > kToolNameBytesMax)
            return name.error(format("expected 1 to {} bytes", kToolNameBytesMax));
        if (!names.emplace(text).second) return name.error("there are two tools of this name");
        TRY(function.string_or("description", ""));
        TRY(function.bool_or("strict", false));
        Tool tool{std::string(text), function.find("parameters")};
        if (tool.parameters && !tool.parameters->is_object()) {
            return tool.parameters->error(
                format("expected a JSON schema, found {}", tool.parameters->describe()));
        }
        tools.push_back(std::move(tool));
    }
    return tools;
}

constexpr std::string_view kNoParameters = R"({"type":"object","properties":{}})";

// Calls stand on one line, as models are taught to write them; a member of the root for the grammar
// compiler.
void write_on_one_line(JsonWriter& writer) {
    writer.key("x-guidance").begin_object().field("whitespace_pattern", "[ ]").end_object();
}

// Of the arguments of the tool that has to be called.
Result<std::string> arguments_schema(const Tool& tool) {
    JsonWriter writer;
    writer.begin_object();
    if (tool.parameters) {
        TRY_ASSIGN(std::vector<JsonMember> members, tool.parameters->as_object());
        for (const JsonMember& member : members) {
            if (member.key != "x-guidance") writer.key(member.key).raw(member.value.dump());
        }
    } else {
        writer.field("type", "object");
    }
    write_on_one_line(writer);
    return writer.end_object().take();
}

// The tool's schema as a part of a larger one: definitions go to the root, where references look.
Status write_inner_schema(const Tool& tool, JsonWriter& writer,
                          std::vector<std::pair<std::string, JsonMember>>& definitions) {
    if (!tool.parameters) {
        writer.raw(kNoParameters);
        return ok_status();
    }
    TRY_ASSIGN(std::vector<JsonMember> members, tool.parameters->as_object());
    writer.begin_object();
    for (const JsonMember& member : members) {
        if (member.key == "x-guidance") continue;
        if (member.key != "$defs" && member.key != "definitions") {
            writer.key(member.key).raw(member.value.dump());
            continue;
        }
        TRY_ASSIGN(std::vector<JsonMember> entries, member.value.as_object());
        for (const JsonMember& entry : entries) {
            std::string group(member.key);
            bool is_new = true;
            for (const auto& [other_group, other] : definitions) {
                if (other_group != group || other.key != entry.key) continue;
                if (other.value.dump() != entry.value.dump())
                    return entry.value.error("two tools define this differently");
                is_new = false;
            }
            if (is_new) definitions.emplace_back(group, entry);
        }
    }
    writer.end_object();
    return ok_status();
}

// [{"name": NAME, "arguments": {...}}, ...] with at least one.
Result<std::string> calls_schema(const std::vector<Tool>& tools, bool parallel) {
    std::vector<std::pair<std::string, JsonMember>> definitions;
    JsonWriter writer;
    writer.begin_object().field("type", "array").field("minItems", 1);
    write_on_one_line(writer);
    if (!parallel) writer.field("maxItems", 1);
    writer.key("items").begin_object().key("anyOf").begin_array();
    for (const Tool& tool : tools) {
        writer.begin_object().field("type", "object").key("properties").begin_object();
        writer.key("name").begin_object().field("const", tool.name).end_object();
        writer.key("arguments");
        TRY(write_inner_schema(tool, writer, definitions));
        writer.end_object().key("required").begin_array().value("name").value("arguments");
        writer.end_array().field("additionalProperties", false).end_object();
    }
    writer.end_array().end_object();
    for (std::string_view group : {"$defs", "definitions"}) {
        bool begun = false;
        for (const auto& [its_group, entry] : definitions) {
            if (its_group != group) continue;
            if (!begun) writer.key(group).begin_object();
            begun = true;
            writer.key(entry.key).raw(entry.value.dump());
        }
        if (begun) writer.end_object();
    }
    return writer.end_object().take();
}

Status parse_tool_choice(const JsonValue& root, const std::vector<Tool>& tools,
                         GenerateRequest& request) {
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
                format("expected \"none\", \"auto\", \"required\" or a function, found {}",
                       choice->describe()));
        }
    } else {
        if (!choice->is_object()) return choice->error(format("expected a text or an object, found {}", choice->describe()));
        TRY_ASSIGN(JsonValue type, choice->require("type"));
        if (!is_text(type, "function"))
            return type.error(format("expected \"function\", found {}", type.describe()));
        TRY_ASSIGN(JsonValue function, choice->require("function"));
        TRY_ASSIGN(JsonValue name, function.require("name"));
        TRY_ASSIGN(std::string_view text, name.as_string());
        bool is_known = std::any_of(tools.begin(), tools.end(),
                                    [&](const Tool& tool) { return tool.name == text; });
        if (!is_known) return name.error("none of the tools has this name");
        request.tool_choice = ToolChoice::kNamed;
        request.forced_function = std::string(text);
    }
    if (tools.empty() && request.tool_choice == ToolChoice::kRequired)
        return choice->error("there are no tools");
    return ok_status();
}

}  // namespace

Status parse_tools(const JsonValue& root, GenerateRequest& request) {
    TRY(parse_structure(root, request));
    if (request.kind != ApiKind::kChat) return ok_status();
    std::vector<Tool> tools;
    std::optional<JsonValue> list = root.find("tools");
    if (list) {
        TRY_ASSIGN(tools, parse_tool_list(*list));
    }
    TRY(parse_tool_choice(root, tools, request));
    TRY_ASSIGN(bool parallel, root.bool_or("parallel_tool_calls", true));
    TRY_ASSIGN(request.include_reasoning, root.bool_or("include_reasoning", true));
    // A model that may not call is not told of what it could call.
    if (request.tool_choice == ToolChoice::kNone) return ok_status();
    request.tools_json = list->dump();
    request.parallel_tool_calls = parallel;
    if (request.tool_choice == ToolChoice::kAuto) return ok_status();
    if (request.structure) {
        return root.find("tool_choice")->error(
            format("contradicts {}", request.structure->param));
    }
    if (request.ignore_eos) {
        return make_error(ErrorCode::kInvalidRequest, "ignore_eos: a required call has an end",
                          "ignore_eos");
    }
    Structure structure{StructureKind::kJsonSchema, {}, "tools"};
    if (request.tool_choice == ToolChoice::kNamed) {
        for (const Tool& tool : tools) {
            if (tool.name != request.forced_function) continue;
            TRY_ASSIGN(structure.source, arguments_schema(tool));
        }
    } else {
        TRY_ASSIGN(structure.source, calls_schema(tools, parallel));
    }
    if (structure.source.size() > kStructureBytesMax) {
        return list->error(format("expected schemas of at most {} bytes together, found {}",
                                  kStructureBytesMax, structure.source.size()));
    }
    request.structure = std::move(structure);
    return ok_status();
}

}  // namespace lorad::proto
