// Parses the form that an answer must have: a schema, a pattern or a grammar of the client's.
#include <algorithm>

#include "proto/base/format.h"
#include "proto/generate/generate_request_parts.h"
#include "proto/known_fields.h"
#include "proto/schema/gbnf.h"
#include "proto/schema/schema.h"

namespace lorad::proto {
namespace {

constexpr size_t kChoiceTextsMax = 4096;

// is_object: the answer is one, whatever the schema leaves out.
Result<Structure> schema_structure(const JsonValue& schema, std::string param, GenerateRequest& request,
                                   bool is_object = false) {
    // Clients of vLLM may send the schema as a text.
    if (schema.is_string()) {
        TRY_ASSIGN(std::string_view text, schema.as_string());
        Result<JsonDocument> document = parse_json(text, {.allow_duplicate_keys = true});
        if (!document.ok())
            return schema.error(format("expected the text of a JSON schema: {}", document.error().message));
        Result<GrammarSchema> inner = schema_for_grammar(
            document->root(), {.is_arguments = is_object, .path_prefix = param + "."}, request.not_enforced);
        if (!inner.ok()) return schema.error(inner.error().message);
        request.response_schema = std::move(*inner);
        return Structure{StructureKind::kJsonSchema, request.response_schema.whole(kAnswerSwitches), std::move(param)};
    }
    if (!schema.is_object() && !schema.is_bool())
        return schema.error(format("expected a JSON schema, found {}", schema.describe()));
    TRY_ASSIGN(request.response_schema, schema_for_grammar(schema, {.is_arguments = is_object}, request.not_enforced));
    return Structure{StructureKind::kJsonSchema, request.response_schema.whole(kAnswerSwitches), std::move(param)};
}

Structure any_object(std::string param, GenerateRequest& request) {
    request.response_schema = {R"({"type":"object"})"};
    return {StructureKind::kJsonSchema, request.response_schema.whole(kAnswerSwitches), std::move(param)};
}

// A regular expression for one of these texts.
Result<Structure> choice_structure(const JsonValue& list, std::string param) {
    TRY_ASSIGN(std::vector<JsonValue> elements, list.as_array());
    if (elements.empty() || elements.size() > kChoiceTextsMax) {
        return list.error(format("expected 1 to {} texts, found {}", kChoiceTextsMax, elements.size()));
    }
    std::string pattern;
    for (const JsonValue& element : elements) {
        TRY_ASSIGN(std::string_view text, element.as_string());
        if (text.empty()) return element.error("expected a text, found an empty one");
        pattern += (pattern.empty() ? "(?:" : "|") + escaped_pattern(text);
    }
    return Structure{StructureKind::kRegex, pattern + ")", std::move(param)};
}

Result<Structure> text_structure(const JsonValue& value, StructureKind kind, std::string param) {
    TRY_ASSIGN(std::string_view text, value.as_string());
    if (text.empty()) return value.error("expected a text, found an empty one");
    if (text.size() > kStructureBytesMax)
        return value.error(format("expected at most {} bytes, found {}", kStructureBytesMax, text.size()));
    if (kind == StructureKind::kLark && looks_like_gbnf(text)) {
        Result<std::string> lark = gbnf_to_lark(text);
        if (!lark.ok()) return value.error(lark.error().message);
        return Structure{kind, std::move(*lark), std::move(param)};
    }
    return Structure{kind, std::string(text), std::move(param)};
}

Result<std::optional<Structure>> response_format(const JsonValue& root, GenerateRequest& request) {
    std::optional<JsonValue> wanted = root.find("response_format");
    if (!wanted) return std::optional<Structure>();
    if (!wanted->is_object()) return wanted->error(format("expected an object, found {}", wanted->describe()));
    TRY_ASSIGN(JsonValue type, wanted->require("type"));
    TRY_ASSIGN(std::string_view name, type.as_string());
    static constexpr KnownField kFields[] = {{"type"}, {"schema"}, {"json_schema"}};
    static constexpr KnownField kPlainFields[] = {{"type"}};
    std::optional<JsonValue> plain = wanted->find("schema");  // llama-server's form
    TRY(check_fields(*wanted, name == "text" ? std::span<const KnownField>(kPlainFields) : kFields,
                     request.ignored_fields));
    if (name == "text") return std::optional<Structure>();
    static constexpr KnownField kSchemaFields[] = {{"name"}, {"description"}, {"schema"}, {"strict"}};
    if (std::optional<JsonValue> named = name == "json_object" && !plain ? wanted->find("json_schema") : std::nullopt) {
        plain = named->has("schema") ? named->find("schema") : named;
        if (named->has("schema")) TRY(check_fields(*named, kSchemaFields, request.ignored_fields));
    }
    if (name == "json_object" && plain && plain->dump() == "true")
        return std::optional(any_object(plain->path(), request));
    if (name == "json_object" && !plain) {
        return std::optional(any_object("response_format", request));
    }
    if (plain && (name == "json_object" || (name == "json_schema" && !wanted->find("json_schema")))) {
        TRY_ASSIGN(Structure structure,
                   schema_structure(*plain, plain->path(), request, name == "json_object" && !plain->has("type")));
        return std::optional(std::move(structure));
    }
    if (plain) return plain->error("json_schema has one already: use one of them");
    if (name != "json_schema") {
        return type.error(format("expected \"text\", \"json_object\" or \"json_schema\", found {}", type.describe()));
    }
    TRY_ASSIGN(JsonValue outer, wanted->require("json_schema"));
    TRY(check_fields(outer, kSchemaFields, request.ignored_fields));
    TRY(outer.bool_or("strict", true));
    TRY(outer.string_or("name", ""));
    TRY_ASSIGN(JsonValue schema, outer.require("schema"));
    TRY_ASSIGN(Structure structure, schema_structure(schema, schema.path(), request));
    return std::optional(std::move(structure));
}

// vLLM's, which ask for nothing where they are off.
bool is_switch(std::string_view name) {
    return name == "disable_fallback" || name == "disable_any_whitespace" || name == "disable_additional_properties";
}

Result<Structure> one_structure(const JsonValue& value, std::string_view kind, GenerateRequest& request) {
    std::string path = value.path();
    if (kind == "json") return schema_structure(value, path, request);
    if (kind == "regex") {
        TRY_ASSIGN(Structure regex, text_structure(value, StructureKind::kRegex, path));
        // A parser takes memory for each group before it finds that there are too many: they are counted here.
        constexpr ptrdiff_t kGroupsMax = 4096;
        if (std::ranges::count(regex.source, '(') > kGroupsMax)
            return value.error(format("expected at most {} groups", kGroupsMax));
        return regex;
    }
    if (kind == "choice") return choice_structure(value, path);
    return text_structure(value, StructureKind::kLark, path);
}

}  // namespace

// Each way of asking, in turn; two at a time contradict each other.
Status parse_structure(const JsonValue& root, GenerateRequest& request) {
    TRY_ASSIGN(request.structure, response_format(root, request));
    request.is_response_format = request.structure.has_value();
    auto take = [&](const JsonValue& value, std::string_view kind) -> Status {
        if (request.structure) {
            return value.error(format("{} asks for something else already: use one of them", request.structure->param));
        }
        TRY_ASSIGN(request.structure, one_structure(value, kind, request));
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
                request.structure = any_object(member.value.path(), request);
            } else if (member.key == "json" || member.key == "regex" || member.key == "choice" ||
                       member.key == "grammar") {
                TRY(take(member.value, member.key));
            } else if (!(is_switch(member.key) && is_bool(member.value, false))) {
                return make_error(ErrorCode::kUnsupportedParameter,
                                  format("{}: this server knows json, json_object, regex, choice "
                                         "and grammar",
                                         member.value.path()),
                                  member.value.path());
            }
        }
        if (!request.structure) return outputs->error("expected one of json, json_object, regex, choice and grammar");
    }
    for (std::string_view kind : {"json", "regex", "choice", "grammar"}) {
        std::optional<JsonValue> value = root.find(format("guided_{}", kind));
        if (value) TRY(take(*value, kind));
    }
    if (!request.structure) return ok_status();
    if (request.structure->source.size() > kStructureBytesMax) {
        return make_error(ErrorCode::kInvalidRequest,
                          format("{}: expected at most {} bytes, found {}", request.structure->param,
                                 kStructureBytesMax, request.structure->source.size()),
                          request.structure->param);
    }
    if (request.ignore_eos) {
        return make_error(ErrorCode::kInvalidRequest,
                          format("ignore_eos: an answer that {} shapes has an end", request.structure->param),
                          "ignore_eos");
    }
    return ok_status();
}

}  // namespace lorad::proto
