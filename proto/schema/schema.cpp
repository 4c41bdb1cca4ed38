#include "proto/schema/schema.h"

#include <algorithm>
#include <map>

#include "proto/base/format.h"
#include "proto/generate/generate_request_parts.h"
#include "proto/known_fields.h"
#include "proto/schema/schema_beside.h"
#include "proto/schema/schema_cycles.h"
#include "proto/schema/schema_disjoint.h"
#include "proto/schema/schema_patterns.h"
#include "proto/schema/schema_rewrite.h"

namespace lorad::proto {
namespace {

// Schemas that are written, each as often as something refers to it.
constexpr size_t kSchemasMax = 1 << 16;
constexpr size_t kDisjointStepsMax = 5000;
constexpr size_t kPatternStepsMax = 20'000;
constexpr size_t kCopiedBytesMax = 1 << 20;  // of values, counted the same way

// Keywords whose value goes on as it is.
bool is_copied(std::string_view key) {
    static constexpr std::string_view kCopied[] = {"const",     "enum",          "required",
                                                   "minItems",  "maxItems",      "minLength",
                                                   "maxLength", "minProperties", "maxProperties"};
    return std::ranges::find(kCopied, key) != std::end(kCopied);
}

class Writer {
  public:
    Writer(const JsonValue& root, const SchemaUse& use, std::vector<std::string>& not_enforced)
        : root_(root), use_(use), refs_(root), not_enforced_(not_enforced) {}

    Result<GrammarSchema> run();

  private:
    // `alone`: no other schema speaks about the same value, or about one that it is a part of.
    Status write(const JsonValue& schema, bool alone, JsonWriter& out);
    Status write_keyword(const JsonValue& schema, const JsonMember& member, bool alone, JsonWriter& out);
    // Writes a keyword that has schemas in it; false: it has none.
    Result<bool> write_schemas(const JsonValue& schema, const JsonMember& member, bool alone, JsonWriter& out);
    // Writes a keyword that bounds a value by itself; false: it does not.
    bool write_bound(const JsonValue& schema, const JsonMember& member, bool alone, JsonWriter& out);
    void write_format(const JsonValue& value, JsonWriter& out);
    Status write_list(const JsonMember& member, bool alone, JsonWriter& out);
    Status write_one_of(const JsonValue& schema, const JsonMember& member, bool alone, JsonWriter& out);
    Status write_properties(const JsonMember& member, bool alone, JsonWriter& out);
    Status write_patterns(const JsonMember& member, bool alone, JsonWriter& out);
    Status write_property_names(const JsonValue& schema, const JsonMember& member, bool alone, JsonWriter& out);
    Status write_reference(const JsonMember& member, bool alone, JsonWriter& out);
    void write_not(const JsonValue& schema, JsonWriter& out);
    bool counts_are_kept(const JsonValue& schema, bool alone) const;
    bool closes(const JsonValue& schema, bool alone) const;
    bool is_root(const JsonValue& schema) const { return use_.is_arguments && schema.id() == root_.id(); }
    void lose(const JsonValue& keyword);
    void copy(std::string_view key, const JsonValue& value, JsonWriter& out);

    struct Definition {
        JsonValue schema;
        bool alone = true;
        std::string name;
    };
    JsonValue root_;
    const SchemaUse& use_;
    SchemaRefs refs_;
    std::vector<std::string>& not_enforced_;
    std::vector<Definition> definitions_;
    std::map<std::pair<uint32_t, bool>, size_t> by_schema_;
    std::optional<Negation> negation_;  // of the schema being written
    std::vector<std::string> also_;     // further schemas that its values have to satisfy
    size_t n_schemas_ = 0, n_copied_ = 0, disjoint_steps_left_ = kDisjointStepsMax,
           pattern_steps_left_ = kPatternStepsMax;
};

bool has_any(const JsonValue& schema, std::initializer_list<std::string_view> keys) {
    return std::ranges::any_of(keys, [&](std::string_view key) { return schema.has(key); });
}

void Writer::lose(const JsonValue& keyword) {
    std::string path = use_.path_prefix + keyword.path();
    if (not_enforced_.size() < kNotEnforcedMax && std::ranges::find(not_enforced_, path) == not_enforced_.end())
        not_enforced_.push_back(std::move(path));
}

void Writer::copy(std::string_view key, const JsonValue& value, JsonWriter& out) {
    if (n_copied_ > kCopiedBytesMax) return;  // refused with the next schema
    const std::string text = value.dump();
    n_copied_ += text.size();
    out.key(key).raw(text);
}

// Properties that a validator would allow, but the schema does not mention, are left out of a closed object.
bool Writer::closes(const JsonValue& schema, bool alone) const {
    if (!use_.is_closed || !alone || (schema_types(schema) & kSchemaObject) == 0) return false;
    if (has_any(schema, {"additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "const",
                         "enum"}))
        return false;
    std::optional<JsonValue> properties = schema.find("properties"), least = schema.find("minProperties");
    if (!properties && !is_root(schema)) return false;
    const size_t n_named = properties ? properties->size() : 0;
    if (least && !least->as_int(0, static_cast<int64_t>(n_named)).ok()) return false;
    return names_what_it_requires(schema) && !others_speak_of_parts(schema);
}

// The compiler counts properties where all that are named are required, or one is the bound and there are no others.
bool Writer::counts_are_kept(const JsonValue& schema, bool alone) const {
    std::optional<JsonValue> least = schema.find("minProperties"), most = schema.find("maxProperties");
    std::optional<JsonValue> properties = schema.find("properties"), required = schema.find("required");
    const size_t n_named = properties ? properties->size() : 0;
    const size_t n_required = required ? required->size() : 0;
    const bool is_plain = alone && !has_any(schema, {"allOf", "anyOf", "oneOf", "$ref", "propertyNames", "not"});
    std::optional<JsonValue> others = schema.find("additionalProperties");
    const bool is_closed = closes(schema, alone) || (others && is_bool(*others, false));
    const bool is_one = is_closed && !schema.has("patternProperties") && n_required == 0 &&
                        (!least || is_number(*least, 1) || is_number(*least, 0)) && (!most || is_number(*most, 1));
    return is_plain && (n_named == 0 || n_named == n_required || is_one);
}

Status Writer::write_reference(const JsonMember& member, bool alone, JsonWriter& out) {
    TRY_ASSIGN(JsonValue target, refs_.target(member.value));
    auto [entry, is_new] = by_schema_.try_emplace({target.id(), alone}, definitions_.size());
    if (is_new) definitions_.push_back({target, alone, format("{}{}", use_.definition_prefix, definitions_.size())});
    out.key("$ref").value("#/$defs/" + definitions_[entry->second].name);
    return ok_status();
}

Status Writer::write_list(const JsonMember& member, bool alone, JsonWriter& out) {
    TRY_ASSIGN(std::vector<JsonValue> schemas, member.value.as_array());
    out.begin_array();
    for (const JsonValue& schema : schemas) TRY(write(schema, alone, out));
    out.end_array();
    return ok_status();
}

// Alternatives that exclude each other are the same as any of them; others are said to overlap.
Status Writer::write_one_of(const JsonValue& schema, const JsonMember& member, bool alone, JsonWriter& out) {
    TRY_ASSIGN(std::vector<JsonValue> schemas, member.value.as_array());
    bool overlaps = false;
    for (size_t i = 0; i < schemas.size() && !overlaps; ++i) {
        for (size_t j = i + 1; j < schemas.size() && !overlaps; ++j)
            overlaps = !are_disjoint(schemas[i], schemas[j], refs_, disjoint_steps_left_);
    }
    if (overlaps) lose(member.value);
    if (!schema.has("anyOf")) {
        out.key("anyOf");
        return write_list(member, alone, out);
    }
    JsonWriter other;
    other.begin_object().key("anyOf");
    TRY(write_list(member, false, other));
    also_.push_back(other.end_object().take());
    return ok_status();
}

Status Writer::write_properties(const JsonMember& member, bool alone, JsonWriter& out) {
    TRY_ASSIGN(std::vector<JsonMember> properties, member.value.as_object());
    std::vector<std::string_view> absent;
    if (negation_) absent = std::exchange(negation_->absent, {});
    out.key(member.key).begin_object();
    for (const JsonMember& property : properties) {
        out.key(property.key);
        if (std::erase(absent, property.key) > 0) {
            out.value(false);
        } else {
            TRY(write(property.value, alone, out));
        }
    }
    for (std::string_view name : absent) out.key(name).value(false);
    out.end_object();
    return ok_status();
}

Status Writer::write_patterns(const JsonMember& member, bool alone, JsonWriter& out) {
    TRY_ASSIGN(std::vector<JsonMember> properties, member.value.as_object());
    const ChosenPatterns chosen = choose_patterns(properties, pattern_steps_left_);
    for (const JsonValue& schema : chosen.lost) lose(schema);
    out.key(member.key).begin_object();
    for (const PatternProperty& one : chosen.kept) {
        out.key(one.pattern);
        TRY(write(one.schema, alone, out));
    }
    out.end_object();
    return ok_status();
}

Status Writer::write_property_names(const JsonValue& schema, const JsonMember& member, bool alone, JsonWriter& out) {
    const JsonValue names = refs_.resolved(member.value);
    if (is_bool(names, true)) return ok_status();
    std::optional<std::string> properties;
    if (!has_any(schema, {"properties", "patternProperties", "required"})) {
        JsonWriter value;
        std::optional<JsonValue> others = schema.find("additionalProperties");
        if (others) {
            TRY(write(*others, alone, value));
        } else {
            value.value(true);
        }
        properties = named_properties(names, value.take());
    }
    if (properties) {
        out.key("patternProperties").raw(*properties).field("additionalProperties", false);
        return ok_status();
    }
    lose(member.value);
    if (std::optional<JsonValue> others = schema.find("additionalProperties")) {
        out.key("additionalProperties");
        return write(*others, alone, out);
    }
    return ok_status();
}

void Writer::write_not(const JsonValue& schema, JsonWriter& out) {
    if (!negation_->is_enforced) lose(negation_->value);
    if (!negation_->absent.empty()) {
        out.key("properties").begin_object();
        for (std::string_view name : negation_->absent) out.key(name).value(false);
        out.end_object();
    }
    if (!negation_->types.empty() && !is_root(schema)) {
        out.key("type").begin_array();
        for (std::string_view type : negation_->types) out.value(type);
        out.end_array();
    }
    if (negation_->values) out.key("enum").raw(*negation_->values);
}

// Keywords with which other schemas speak about the same value.
size_t n_combined(const JsonValue& schema) {
    return schema.has("allOf") + schema.has("anyOf") + schema.has("oneOf") +
           has_any(schema, {"$ref", "$dynamicRef", "$recursiveRef"}) + has_any(schema, {"if", "dependentSchemas"});
}

bool says_nothing(const JsonValue& schema, std::string_view key, const JsonValue& value) {
    if (key == "not" || key == "then" || key == "else") return true;  // seen with the whole schema, and with "if"
    if (key == "if") return !has_any(schema, {"then", "else"});
    if (key == "minContains" || key == "maxContains") return !schema.has("contains");
    if (key != "uniqueItems") return false;
    return !is_bool(value, true) || (schema.find("maxItems") && schema.find("maxItems")->as_int(0, 1).ok());
}

Status Writer::write_keyword(const JsonValue& schema, const JsonMember& member, bool alone, JsonWriter& out) {
    const std::string_view key = member.key;
    if (is_annotation(key)) return ok_status();
    if (key == "x-guidance")
        return unsupported_field(use_.path_prefix + member.value.path(), "this server has no switches in schemas");
    TRY_ASSIGN(const bool has_schemas, write_schemas(schema, member, alone, out));
    if (has_schemas || write_bound(schema, member, alone, out) || says_nothing(schema, key, member.value))
        return ok_status();
    const bool unevaluated = key == "unevaluatedProperties" || key == "unevaluatedItems";
    const std::string_view plain = key == "unevaluatedItems" ? "items" : "additionalProperties";
    if (unevaluated && (schema.has(plain) || is_bool(member.value, true))) return ok_status();
    if (unevaluated && n_combined(schema) == 0 && !has_any(schema, {"contains", "propertyNames"})) {
        out.key(plain);
        return write(member.value, alone && !others_speak_of_parts(schema), out);
    }
    lose(member.value);
    return ok_status();
}

Result<bool> Writer::write_schemas(const JsonValue& schema, const JsonMember& member, bool alone, JsonWriter& out) {
    const std::string_view key = member.key;
    const JsonValue& value = member.value;
    const auto written = [](const Status& status) -> Result<bool> {
        TRY(status);
        return true;
    };
    // Keywords that a combined schema's members would have to leave room for.
    const bool beside = has_any(
        schema, {"properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames",
                 "minProperties", "maxProperties", "required", "dependentRequired", "dependencies", "const", "enum"});
    const bool same_alone = alone && !beside && n_combined(schema) == 1;
    if (is_reference(key)) return written(write_reference(member, same_alone, out));
    if (key == "allOf" || key == "anyOf") {
        out.key(key);
        return written(write_list(member, same_alone && (key == "anyOf" || value.size() == 1), out));
    }
    if (key == "oneOf") return written(write_one_of(schema, member, same_alone, out));

    const bool parts_alone = alone && !others_speak_of_parts(schema);
    // A name may be one of "properties" and match several patterns.
    std::optional<JsonValue> patterns = schema.find("patternProperties");
    const bool has_one_each = !patterns || (!schema.has("properties") && patterns->size() < 2);
    if (key == "properties") return written(write_properties(member, has_one_each && parts_alone, out));
    if (key == "patternProperties") return written(write_patterns(member, has_one_each && parts_alone, out));
    if (key == "propertyNames") return written(write_property_names(schema, member, parts_alone, out));
    if (key == "additionalProperties" && schema.has("propertyNames")) return true;  // written with them
    if (key == "prefixItems" || (key == "items" && value.is_array())) {
        out.key(key);
        return written(write_list(member, parts_alone, out));
    }
    if (key == "additionalProperties" || key == "items" || key == "additionalItems") {
        out.key(key);
        return written(write(value, parts_alone, out));
    }
    return false;
}

bool Writer::write_bound(const JsonValue& schema, const JsonMember& member, bool alone, JsonWriter& out) {
    const std::string_view key = member.key;
    const JsonValue& value = member.value;
    if (key == "type") {
        if (!is_root(schema) && !(negation_ && !negation_->types.empty())) copy(key, value, out);
    } else if ((key == "const" || key == "enum") && negation_ && negation_->values) {
        // write_not() writes those that are left.
    } else if (key == "pattern" && value.is_string() && is_beyond_grammars(*value.as_string())) {
        lose(value);
    } else if (key == "minimum" || key == "maximum" || key == "exclusiveMinimum" || key == "exclusiveMaximum" ||
               key == "multipleOf") {
        const std::optional<std::string> held = held_number(key, value);
        if (held)
            out.key(key).raw(*held);
        else
            lose(value);
    } else if (key == "format") {
        write_format(value, out);
    } else if ((key == "minProperties" || key == "maxProperties") && !counts_are_kept(schema, alone)) {
        // Otherwise the compiler leaves out what the rest of the schema lets in.
        if (key == "maxProperties" || !is_number(value, 0)) lose(value);
    } else if (is_copied(key) || key == "pattern") {
        copy(key, value, out);
    } else {
        return false;
    }
    return true;
}

void Writer::write_format(const JsonValue& value, JsonWriter& out) {
    const FormatKind kind = value.is_string() ? format_kind(*value.as_string()) : FormatKind::kAnnotation;
    if (kind == FormatKind::kNotEnforced) lose(value);
    if (kind != FormatKind::kEnforced) return;
    copy("format", value, out);
    // The compiler lets in a leap second in every minute.
    const std::string_view name = *value.as_string();
    if (name == "date-time" || name == "time") also_.push_back(R"({"pattern":"^[^:]*:[^:]*:[0-5]"})");
}

Status Writer::write(const JsonValue& schema, bool alone, JsonWriter& out) {
    if (++n_schemas_ > kSchemasMax || n_copied_ > kCopiedBytesMax)
        return schema.error(format("expected at most {} schemas and {} bytes of values within the schema", kSchemasMax,
                                   kCopiedBytesMax));
    if (schema.is_bool()) {
        out.raw(schema.dump());
        return ok_status();
    }
    TRY_ASSIGN(std::vector<JsonMember> members, schema.as_object());
    if (std::optional<std::string> lists = schema.find("uniqueItems") && is_bool(*schema.find("uniqueItems"), true)
                                               ? distinct_lists(schema)
                                               : std::nullopt) {
        out.begin_object().key("enum").raw(*lists).end_object();
        return ok_status();
    }
    // Saves the state of the schema around this one.
    std::optional<Negation> outer_negation = std::exchange(negation_, std::nullopt);
    std::vector<std::string> outer_also = std::exchange(also_, {});
    const auto negated = std::ranges::find(members, std::string_view("not"), &JsonMember::key);
    if (negated != members.end()) {
        if (!negated->value.is_object() && !negated->value.is_bool())
            return negated->value.error(format("expected a JSON schema, found {}", negated->value.describe()));
        negation_ = negation_of(schema, negated->value, refs_, disjoint_steps_left_);
    }
    if (negation_ && negation_->allows_nothing) {
        out.value(false);
    } else {
        out.begin_object();
        if (is_root(schema)) out.field("type", "object");
        std::optional<JsonMember> all_of;
        for (const JsonMember& member : members) {
            if (member.key == "allOf") {
                all_of = member;
            } else {
                TRY(write_keyword(schema, member, alone, out));
            }
        }
        if (negation_) write_not(schema, out);
        if (all_of && also_.empty()) TRY(write_keyword(schema, *all_of, alone, out));
        if (!also_.empty()) {
            if (all_of) {
                JsonWriter list;
                TRY(write_list(*all_of, false, list.begin_object().key("allOf")));
                also_.push_back(list.end_object().take());
            }
            out.key("allOf").begin_array();
            for (const std::string& other : also_) out.raw(other);
            out.end_array();
        }
        if (closes(schema, alone)) out.field("additionalProperties", false);
        out.end_object();
    }
    negation_ = std::move(outer_negation);
    also_ = std::move(outer_also);
    return ok_status();
}

Result<GrammarSchema> Writer::run() {
    if (use_.is_arguments) {
        root_ = refs_.resolved(root_);
        if (!root_.is_object())
            return root_.error(format("expected the schema of an object, found {}", root_.describe()));
        if ((schema_types(root_) & kSchemaObject) == 0) {
            const JsonValue type = root_.find("type").value_or(root_);
            return type.error("a function's parameters are an object");
        }
    }
    GrammarSchema schema;
    JsonWriter root;
    TRY(write(root_, true, root));
    schema.root = root.take();
    for (size_t i = 0; i < definitions_.size(); ++i) {
        const Definition definition = definitions_[i];  // writing adds further ones
        JsonWriter text;
        TRY(write(definition.schema, definition.alone, text));
        schema.definitions.emplace_back(definition.name, text.take());
    }
    if (n_copied_ > kCopiedBytesMax) return root_.error(format("expected at most {} bytes of values", kCopiedBytesMax));
    std::vector<JsonValue> referred;
    for (const Definition& definition : definitions_) referred.push_back(definition.schema);
    TRY(refuse_endless_references(referred, refs_));
    return schema;
}

}  // namespace

std::string GrammarSchema::whole(std::string_view members) const {
    if (!root.starts_with('{')) return root;
    std::string text(members);
    if (!definitions.empty()) {
        if (!text.empty()) text += ',';
        text += "\"$defs\":{";
        for (const auto& [name, definition] : definitions)
            text += (text.back() == '{' ? "" : ",") + json_quote(name) + ":" + definition;
        text += '}';
    }
    if (!text.empty() && root != "{}") text = "," + text;
    return root.substr(0, root.size() - 1) + text + "}";
}

Result<GrammarSchema> schema_for_grammar(const JsonValue& schema, const SchemaUse& use,
                                         std::vector<std::string>& not_enforced) {
    return Writer(schema, use, not_enforced).run();
}

}  // namespace lorad::proto
