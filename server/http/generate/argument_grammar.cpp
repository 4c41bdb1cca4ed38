#include "server/http/generate/argument_grammar.h"

#include <algorithm>
#include <map>
#include <optional>

#include "proto/base/format.h"
#include "proto/json/json.h"
#include "proto/schema/schema.h"

namespace lorad::server {
namespace {

using model::ToolFormat;

constexpr uint32_t kDepthMax = 16;  // nesting of values; deeper ones are free
// Values and bytes of rules that are written for all tools; what comes behind them is free: references may lead to the
// same schemas again and again.
constexpr size_t kValuesMax = 8192, kRulesBytesMax = size_t{2} << 20;

std::string text_of(const JsonValue& value) {
    return value.is_string() ? std::string(*value.as_string()) : value.dump();
}

bool is_required(const JsonValue& object, std::string_view key) {
    const std::optional<JsonValue> list = object.find("required");
    return list && list->is_array() && std::ranges::any_of(*list->as_array(), [&](const JsonValue& one) {
               return one.is_string() && *one.as_string() == key;
           });
}

bool is_closed(const JsonValue& object) {
    const std::optional<JsonValue> others = object.find("additionalProperties");
    return others && others->is_bool() && !*others->as_bool();
}

// {min, max} of what a schema says of a size; empty where it says nothing.
std::string bounds_of(const JsonValue& schema, std::string_view min_key, std::string_view max_key) {
    constexpr int64_t kMost = 100000;
    const Result<int64_t> low = schema.int_or(min_key, 0, 0, kMost), high = schema.int_or(max_key, -1, -1, kMost);
    const int64_t min = low.ok() ? *low : 0, max = high.ok() ? *high : -1;
    if (min == 0 && max < 0) return {};
    return max < 0 ? format("{{{},}}", min) : format("{{{},{}}}", min, max);
}

std::optional<std::vector<JsonValue>> choices_of(const JsonValue& schema) {
    for (std::string_view key : {"anyOf", "oneOf"}) {
        const std::optional<JsonValue> choices = schema.find(key);
        if (choices && choices->is_array() && choices->size() > 0) return *choices->as_array();
    }
    return std::nullopt;
}

std::string joined(const std::vector<std::string>& terms) {
    std::string out;
    for (const std::string& term : terms) out += (out.empty() ? "" : " | ") + term;
    return terms.size() == 1 ? out : "(" + out + ")";
}

}  // namespace

// A tool's schema and what its references look for.
struct ArgumentGrammar::Schemas {
    explicit Schemas(const proto::GrammarSchema& given) : schema(given), root(parse_json(given.root, kOptions)) {
        for (const auto& [name, text] : given.definitions) {
            if (Result<JsonDocument> parsed = parse_json(text, kOptions); parsed.ok())
                definitions.emplace(name, std::move(*parsed));
        }
    }
    // Follows references.
    JsonValue resolved(JsonValue at) const {
        for (uint32_t i = 0; i < kDepthMax; ++i) {
            const std::optional<JsonValue> name = at.find("$ref");
            if (!name || !name->is_string()) break;
            std::string_view path = *name->as_string();
            constexpr std::string_view kDefinitions = "#/$defs/";
            if (path.starts_with(kDefinitions)) path.remove_prefix(kDefinitions.size());
            const auto found = definitions.find(path);
            if (found == definitions.end()) break;
            at = found->second.root();
        }
        return at;
    }
    std::string json(const JsonValue& part) const {
        return "%json " + proto::GrammarSchema{part.dump(), schema.definitions}.whole(proto::kOneLineSwitches);
    }

    static inline const JsonParseOptions kOptions{.max_depth = 192, .allow_duplicate_keys = true};
    const proto::GrammarSchema& schema;
    Result<JsonDocument> root;
    std::map<std::string, JsonDocument, std::less<>> definitions;
};

bool ArgumentGrammar::is_spent() const { return n_values_ >= kValuesMax || rules_.size() > kRulesBytesMax; }

std::string ArgumentGrammar::add_rule(std::string_view kind, std::string_view text, std::string_view attribute) {
    std::string name = format("{}{}", kind, n_rules_++);
    rules_ += format("{}{}: {}\n", name, attribute, text);
    return name;
}

std::string ArgumentGrammar::call_of(const proto::CallableTool& tool, std::string_view begin) {
    Schemas schemas(tool.arguments);
    return format_ == ToolFormat::kQwenXml ? xml_call(tool, schemas) : literal_call(tool, schemas, begin);
}

std::string ArgumentGrammar::xml_text(const JsonValue* schema) {
    const std::string bounds = schema != nullptr ? bounds_of(*schema, "minLength", "maxLength") : std::string();
    return add_rule("text", format("/(?s:.{})\\n<\\/parameter>\\n/", bounds.empty() ? "*" : bounds), "[lazy]");
}

// A value and the mark behind it.
std::string ArgumentGrammar::xml_value(const JsonValue& written, Schemas& schemas) {
    constexpr std::string_view kEnd = "\"\\n</parameter>\\n\"";
    const JsonValue schema = schemas.resolved(written);
    if (!schema.is_object()) return xml_text(nullptr);
    std::vector<std::string> values;
    if (const std::optional<JsonValue> constant = schema.find("const"))
        values.push_back(json_quote(text_of(*constant)));
    if (const std::optional<JsonValue> list = schema.find("enum"); list && list->is_array()) {
        for (const JsonValue& value : *list->as_array()) values.push_back(json_quote(text_of(value)));
    }
    if (!values.empty()) return joined(values) + " " + std::string(kEnd);
    const proto::ValueTypes types =
        proto::value_types(schema, [&](const JsonValue& at) { return schemas.resolved(at); });
    if (types.text) return xml_text(types.is_text_only() ? &schema : nullptr);
    return add_rule("value", schemas.json(schema)) + " " + std::string(kEnd);
}

std::string ArgumentGrammar::xml_call(const proto::CallableTool& tool, Schemas& schemas) {
    std::string call = json_quote("<function=" + tool.name + ">\n");
    const std::optional<JsonValue> root =
        schemas.root.ok() ? std::optional(schemas.resolved(schemas.root->root())) : std::nullopt;
    const std::optional<JsonValue> properties = root ? root->find("properties") : std::nullopt;
    if (properties && properties->is_object()) {
        for (const JsonMember& property : *properties->as_object()) {
            if (property.value.is_bool() && !*property.value.as_bool()) continue;
            const std::string term = json_quote("<parameter=" + std::string(property.key) + ">\n") + " " +
                                     xml_value(property.value, schemas);
            call += is_required(*root, property.key) ? " " + term : " (" + term + ")?";
        }
    }
    if (!root || !is_closed(*root)) call += " (\"<parameter=\" /[^>\\n]{1,256}/ \">\\n\" " + xml_text(nullptr) + ")*";
    return call + " \"</function>\"";
}

std::string ArgumentGrammar::key_term(std::string_view key, bool is_argument) const {
    if (is_argument) return json_quote(std::string(key) + (is_python() ? "=" : ":"));
    return json_quote(is_python() ? json_quote(key) + ": " : std::string(key) + ":");
}

std::string ArgumentGrammar::literal_call(const proto::CallableTool& tool, Schemas& schemas, std::string_view begin) {
    const std::string_view prefix = is_python() ? "" : "call:";
    const std::string head =
        json_quote(std::string(begin) + std::string(prefix) + tool.name + (is_python() ? "(" : "{"));
    const std::string_view tail = is_python() ? "\")\"" : "\"}\"";
    const std::optional<JsonValue> root =
        schemas.root.ok() ? std::optional(schemas.resolved(schemas.root->root())) : std::nullopt;
    Members members;
    if (root && root->is_object()) {
        members = members_of(*root, schemas, 0, true);
    } else {
        members.others = "/[A-Za-z_][A-Za-z0-9_]*/ " + key_term("", true) + " " + any_value();
    }
    return format("{} {} {}", head, listed(members, separator()), tail);
}

ArgumentGrammar::Members ArgumentGrammar::members_of(const JsonValue& object, Schemas& schemas, uint32_t depth,
                                                     bool is_arguments) {
    Members members;
    std::vector<JsonMember> listed_members;
    if (const std::optional<JsonValue> properties = object.find("properties"); properties && properties->is_object())
        listed_members = *properties->as_object();
    // Gemma's template sorts them.
    if (!is_python()) std::ranges::stable_sort(listed_members, {}, &JsonMember::key);
    for (const JsonMember& property : listed_members) {
        if (property.value.is_bool() && !*property.value.as_bool()) continue;
        members.terms.emplace_back(
            key_term(property.key, is_arguments) + " " + value_of(property.value, schemas, depth + 1),
            is_required(object, property.key));
    }
    if (is_closed(object)) return members;
    const std::optional<JsonValue> others = object.find("additionalProperties");
    const std::string value = others && others->is_object() ? value_of(*others, schemas, depth + 1) : any_value();
    const std::string key = is_arguments || !is_python() ? "/[A-Za-z_][A-Za-z0-9_]*/ " + key_term("", is_arguments)
                                                         : R"(%json {"type":"string"} ": ")";
    members.others =
        (key.starts_with('%') ? add_rule("key", R"(%json {"type":"string"})") + " \": \"" : key) + " " + value;
    return members;
}

// Terms in their order with separators between: `first` where none has come, `rest` where one has.
std::string ArgumentGrammar::listed(const Members& members, std::string_view separator) {
    const std::string comma = json_quote(separator);
    std::string first, rest;
    if (!members.others.empty()) {
        const std::string other = add_rule("other", members.others);
        rest = add_rule("rest", format("({} {})*", comma, other));
        first = add_rule("first", format("({} {})?", other, rest));
    }
    for (size_t i = members.terms.size(); i-- > 0;) {
        const auto& [term, required] = members.terms[i];
        const std::string member = add_rule("member", term);
        const std::string first_text = format("{} {}{}", member, rest,
                                              required        ? ""
                                              : first.empty() ? " | \"\""
                                                              : " | " + first);
        const std::string rest_text = format("{} {} {}{}", comma, member, rest,
                                             required       ? ""
                                             : rest.empty() ? " | \"\""
                                                            : " | " + rest);
        first = add_rule("first", first_text);
        rest = add_rule("rest", rest_text);
    }
    return first;
}

std::string ArgumentGrammar::text_value(const JsonValue* schema) {
    if (is_python()) {
        std::string source = R"({"type":"string"})";
        if (schema != nullptr) {
            JsonWriter writer;
            writer.begin_object().field("type", "string");
            for (std::string_view key : {"minLength", "maxLength", "pattern", "format"}) {
                if (const std::optional<JsonValue> value = schema->find(key)) writer.key(key).raw(value->dump());
            }
            source = writer.field("x-guidance", "").end_object().take();
            source.replace(source.find("\"x-guidance\":\"\""), 15, std::string(proto::kOneLineSwitches));
        }
        return add_rule("text", "%json " + source);
    }
    const std::string bounds = schema != nullptr ? bounds_of(*schema, "minLength", "maxLength") : std::string();
    if (quote_.starts_with('<')) {  // a token, which no text holds
        if (bounds.empty()) return add_rule("text", format("{} (/(?s:.+)/)? {}", quote_, quote_));
        return add_rule("text", format("{} /(?s:.{})/ {}", quote_, bounds, quote_));
    }
    const std::string rest = add_rule(
        "quoted", format("/(?s:.{}){}/", bounds.empty() ? "*" : bounds, proto::escaped_pattern(quote_text_)), "[lazy]");
    return quote_ + " " + rest;
}

std::string ArgumentGrammar::constant(const JsonValue& value) {
    if (value.is_string() && !is_python())
        return quote_ + " " + (value.as_string()->empty() ? "" : json_quote(*value.as_string()) + " ") + quote_;
    if (value.is_bool() && is_python()) return *value.as_bool() ? "\"True\"" : "\"False\"";
    if (value.is_null() && is_python()) return "\"None\"";
    if (!value.is_array() && !value.is_object()) return json_quote(value.dump());
    // Lists and objects are written as their own kind is.
    std::string out = value.is_array() ? "\"[\"" : "\"{\"";
    size_t n = 0;
    if (value.is_array()) {
        for (const JsonValue& one : *value.as_array())
            out += (n++ == 0 ? " " : " " + json_quote(separator()) + " ") + constant(one);
    } else {
        for (const JsonMember& one : *value.as_object())
            out += (n++ == 0 ? " " : " " + json_quote(separator()) + " ") + key_term(one.key, false) + " " +
                   constant(one.value);
    }
    return out + (value.is_array() ? " \"]\"" : " \"}\"");
}

std::string ArgumentGrammar::array_value(const JsonValue& schema, Schemas& schemas, uint32_t depth) {
    const std::optional<JsonValue> items = schema.find("items");
    const std::string item = items && items->is_object() ? value_of(*items, schemas, depth + 1) : any_value();
    const Result<int64_t> low = schema.int_or("minItems", 0, 0, 4096), high = schema.int_or("maxItems", -1, -1, 4096);
    const int64_t min = low.ok() ? *low : 0, max = high.ok() ? *high : -1;
    if (max == 0) return "\"[]\"";
    const int64_t more_min = std::max<int64_t>(min, 1) - 1;
    std::string more = format("({} {})", json_quote(separator()), item);
    more += max < 0 ? more_min == 0 ? "*" : format("{{{},}}", more_min) : format("{{{},{}}}", more_min, max - 1);
    const std::string some = max == 1 ? item : item + " " + more;
    return add_rule("list", min > 0 ? format("\"[\" {} \"]\"", some) : format("\"[\" ({})? \"]\"", some));
}

std::string ArgumentGrammar::object_value(const JsonValue& schema, Schemas& schemas, uint32_t depth) {
    return add_rule("object",
                    format("\"{{\" {} \"}}\"", listed(members_of(schema, schemas, depth, false), separator())));
}

std::string ArgumentGrammar::value_of_type(std::string_view type, const JsonValue& schema, Schemas& schemas,
                                           uint32_t depth) {
    if (is_spent()) return any_value();
    if (type == "string") return text_value(&schema);
    if (type == "number" || type == "integer") {
        JsonWriter writer;
        writer.begin_object().field("type", type);
        for (std::string_view key : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
            if (const std::optional<JsonValue> value = schema.find(key)) writer.key(key).raw(value->dump());
        }
        return add_rule("number", "%json " + writer.end_object().take());
    }
    if (type == "boolean") return is_python() ? "(\"True\" | \"False\")" : "(\"true\" | \"false\")";
    if (type == "null") return is_python() ? "\"None\"" : "\"null\"";
    if (type == "array") return array_value(schema, schemas, depth);
    if (type == "object") return object_value(schema, schemas, depth);
    return any_value();
}

std::string ArgumentGrammar::value_of(const JsonValue& written, Schemas& schemas, uint32_t depth) {
    if (depth > kDepthMax || is_spent()) return any_value();
    ++n_values_;
    const JsonValue schema = schemas.resolved(written);
    if (!schema.is_object()) return any_value();
    if (const std::optional<JsonValue> only = schema.find("const")) return constant(*only);
    std::vector<std::string> terms;
    if (const std::optional<JsonValue> list = schema.find("enum"); list && list->is_array() && list->size() > 0) {
        for (const JsonValue& value : *list->as_array()) terms.push_back(constant(value));
        return joined(terms);
    }
    if (const auto choices = choices_of(schema)) {
        for (const JsonValue& choice : *choices) terms.push_back(value_of(choice, schemas, depth + 1));
        return joined(terms);
    }
    const std::optional<JsonValue> type = schema.find("type");
    if (type && type->is_string()) return value_of_type(*type->as_string(), schema, schemas, depth);
    if (type && type->is_array() && type->size() > 0) {
        for (const JsonValue& one : *type->as_array()) {
            if (one.is_string()) terms.push_back(value_of_type(*one.as_string(), schema, schemas, depth));
        }
        return terms.empty() ? any_value() : joined(terms);
    }
    return any_value();
}

// Anything in this form.
std::string ArgumentGrammar::any_value() {
    if (!any_.empty()) return any_;
    any_ = "anything";
    const std::string text = text_value(nullptr), number = add_rule("number", R"(%json {"type":"number"})");
    const std::string words = is_python() ? R"("True" | "False" | "None")" : R"("true" | "false" | "null")";
    const std::string comma = json_quote(separator());
    const std::string key = is_python() ? add_rule("key", R"(%json {"type":"string"})") + " \": \""
                                        : std::string(R"(/[A-Za-z_][A-Za-z0-9_]*/ ":")");
    rules_ += format("anything: {} | {} | {} | \"[\" (anything ({} anything)*)? \"]\" | \"{{\" (pair ({} pair)*)? "
                     "\"}}\"\npair: {} anything\n",
                     text, number, words, comma, comma, key);
    return any_;
}

}  // namespace lorad::server
