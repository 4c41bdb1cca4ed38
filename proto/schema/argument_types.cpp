#include "proto/schema/argument_types.h"

#include <algorithm>
#include <optional>

namespace lorad::proto {
namespace {

constexpr uint32_t kDepthMax = 8;  // of schemas within schemas, and of references
// that are looked at for one value: references may lead to the same ones again and again
constexpr uint32_t kTypedSchemasMax = 512;
constexpr ValueTypes kNothing{false, false, false, false, false, false};

void add_name(std::string_view name, ValueTypes& types) {
    if (name == "string") types.text = true;
    if (name == "number" || name == "integer") types.number = true;
    if (name == "boolean") types.boolean = true;
    if (name == "null") types.null = true;
    if (name == "array") types.array = true;
    if (name == "object") types.object = true;
}

void add(const ValueTypes& more, ValueTypes& types) {
    types.text |= more.text;
    types.number |= more.number;
    types.boolean |= more.boolean;
    types.null |= more.null;
    types.array |= more.array;
    types.object |= more.object;
}

ValueTypes of_value(const JsonValue& value) {
    ValueTypes types = kNothing;
    types.text = value.is_string();
    types.number = value.is_number();
    types.boolean = value.is_bool();
    types.null = value.is_null();
    types.array = value.is_array();
    types.object = value.is_object();
    return types;
}

// "#/$defs/name" and the like, within one schema.
std::optional<JsonValue> referred(const JsonValue& root, std::string_view reference) {
    if (!reference.starts_with("#")) return std::nullopt;
    reference.remove_prefix(1);
    JsonValue at = root;
    while (reference.starts_with("/")) {
        reference.remove_prefix(1);
        const std::string_view key = reference.substr(0, reference.find('/'));
        reference.remove_prefix(key.size());
        const std::optional<JsonValue> next = at.find(key);
        if (!next) return std::nullopt;
        at = *next;
    }
    return at;
}

// Follows a schema's references, as far as they go.
JsonValue resolved(const JsonValue& root, JsonValue schema) {
    for (uint32_t i = 0; i < kDepthMax; ++i) {
        const std::optional<JsonValue> reference = schema.find("$ref");
        if (!reference || !reference->is_string()) break;
        const std::optional<JsonValue> next = referred(root, *reference->as_string());
        if (!next) break;
        schema = *next;
    }
    return schema;
}

using Resolve = std::function<JsonValue(const JsonValue&)>;

// Every type where it would take more than n_left schemas to tell.
ValueTypes types_of(const Resolve& resolve, const JsonValue& written, uint32_t depth, uint32_t& n_left) {
    if (depth > kDepthMax || n_left == 0) return {};
    --n_left;
    const JsonValue schema = resolve(written);
    if (!schema.is_object()) return {};
    ValueTypes types = kNothing;
    if (const std::optional<JsonValue> constant = schema.find("const")) return of_value(*constant);
    if (const std::optional<JsonValue> choices = schema.find("enum"); choices && choices->is_array()) {
        for (const JsonValue& value : *choices->as_array()) add(of_value(value), types);
        return types;
    }
    if (const std::optional<JsonValue> name = schema.find("type")) {
        if (name->is_string()) add_name(*name->as_string(), types);
        if (name->is_array()) {
            for (const JsonValue& one : *name->as_array()) {
                if (one.is_string()) add_name(*one.as_string(), types);
            }
        }
        return types == kNothing ? ValueTypes() : types;
    }
    for (std::string_view key : {"anyOf", "oneOf"}) {
        const std::optional<JsonValue> choices = schema.find(key);
        if (!choices || !choices->is_array()) continue;
        for (const JsonValue& choice : *choices->as_array()) {
            if (types == ValueTypes()) break;
            add(types_of(resolve, choice, depth + 1, n_left), types);
        }
        return types == kNothing ? ValueTypes() : types;
    }
    if (const std::optional<JsonValue> parts = schema.find("allOf"); parts && parts->is_array() && parts->size() == 1)
        return types_of(resolve, parts->as_array()->front(), depth + 1, n_left);
    if (schema.has("properties")) types.object = true;
    if (schema.has("items")) types.array = true;
    return types == kNothing ? ValueTypes() : types;
}

}  // namespace

ValueTypes value_types(const JsonValue& schema, const std::function<JsonValue(const JsonValue&)>& resolve) {
    uint32_t n_left = kTypedSchemasMax;
    return types_of(resolve, schema, 0, n_left);
}

ValueTypes FunctionTypes::of(std::string_view parameter) const {
    const auto found =
        std::ranges::find(parameters, parameter, [](const auto& one) { return std::string_view(one.first); });
    return found == parameters.end() ? ValueTypes() : found->second;
}

std::vector<FunctionTypes> argument_types(std::string_view tools_json) {
    std::vector<FunctionTypes> functions;
    Result<JsonDocument> document = parse_json(tools_json);
    if (!document.ok() || !document->root().is_array()) return functions;
    for (const JsonValue& tool : *document->root().as_array()) {
        const std::optional<JsonValue> function = tool.find("function");
        const std::optional<JsonValue> name = function ? function->find("name") : std::nullopt;
        if (!name || !name->is_string()) continue;
        FunctionTypes& types = functions.emplace_back();
        types.name = *name->as_string();
        const std::optional<JsonValue> schema = function->find("parameters");
        if (!schema) continue;
        const auto resolve = [&](const JsonValue& at) { return resolved(*schema, at); };
        const std::optional<JsonValue> properties = resolve(*schema).find("properties");
        if (!properties || !properties->is_object()) continue;
        for (const JsonMember& property : *properties->as_object())
            types.parameters.emplace_back(std::string(property.key), value_types(property.value, resolve));
    }
    return functions;
}

std::string json_of_written(std::string_view written, const ValueTypes& types) {
    if (types.is_text_only()) return json_quote(written);
    constexpr std::string_view kBlanks = " \t\r\n";
    std::string_view text = written;
    text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
    text = text.substr(0, text.find_last_not_of(kBlanks) + 1);
    if (types.boolean && (text == "True" || text == "False")) return text == "True" ? "true" : "false";
    if (types.null && text == "None") return "null";
    Result<JsonDocument> value = parse_json(text, {.allow_duplicate_keys = true});
    if (!value.ok()) return json_quote(written);
    const ValueTypes is = of_value(value->root());
    const bool fits = (is.number && types.number) || (is.boolean && types.boolean) || (is.null && types.null) ||
                      (is.array && types.array) || (is.object && types.object);
    // A text in quotes is a text where it cannot be what is said without them.
    const bool is_quoted = is.text && !types.text;
    return fits || is_quoted ? std::string(text) : json_quote(written);
}

}  // namespace lorad::proto
