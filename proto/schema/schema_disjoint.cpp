#include "proto/schema/schema_disjoint.h"

#include <algorithm>
#include <limits>

namespace lorad::proto {
namespace {

constexpr uint32_t kDisjointDepthMax = 16;
constexpr size_t kValuesMax = 64;  // enumerated values or required names compared

struct Disjoint {
    SchemaRefs& refs;
    size_t& steps_left;

    void charge(size_t n) { steps_left -= std::min(steps_left, n / 16); }

    // The number of elements that each look at a schema goes through.
    static size_t weight(const JsonValue& schema) {
        size_t n = schema.size();
        for (const char* key : {"enum", "type", "required", "anyOf", "oneOf", "allOf"}) {
            std::optional<JsonValue> list = schema.find(key);
            n += list ? list->size() : 0;
        }
        return n;
    }

    // Both by value: 1 and 1.0 are the same number.
    bool may_equal(const JsonValue& a, const JsonValue& b) {
        if (a.is_number() && b.is_number()) return *a.as_number() == *b.as_number();
        if (possible_types(a) != possible_types(b)) return false;
        if (a.is_string()) {
            charge(a.as_string()->size());
            return *a.as_string() == *b.as_string();
        }
        // Equal lists and objects may be written in many ways, so only their sizes are compared.
        return a.is_array() || a.is_object() ? a.size() == b.size() : a.dump() == b.dump();
    }

    static std::vector<JsonValue> values_of(const JsonValue& schema) {
        if (schema.has("const")) {
            std::optional<JsonValue> value = schema.find("const");
            return value ? std::vector<JsonValue>{*value} : std::vector<JsonValue>{};
        }
        std::optional<JsonValue> list = schema.find("enum");
        if (!list || !list->is_array() || list->size() > kValuesMax) return {};
        return *list->as_array();
    }

    static std::vector<std::string_view> required_of(const JsonValue& schema) {
        std::optional<JsonValue> list = schema.find("required");
        if (!list || !list->is_array()) return {};
        std::vector<std::string_view> names;
        for (const JsonValue& element : *list->as_array()) {
            if (names.size() < kValuesMax && element.is_string()) names.push_back(*element.as_string());
        }
        return names;
    }

    static bool is_false(const std::optional<JsonValue>& schema) {
        return schema && schema->is_bool() && !*schema->as_bool();
    }

    // A property that the one must have, and the other must not, or with another value.
    bool properties_differ(const JsonValue& a, const JsonValue& b, uint32_t depth) {
        const std::vector<std::string_view> required = required_of(a), other_required = required_of(b);
        std::optional<JsonValue> own = a.find("properties"), others = b.find("properties");
        const bool is_closed = is_false(b.find("additionalProperties")) && !b.find("patternProperties");
        for (std::string_view name : required) {
            std::optional<JsonValue> other = others ? others->find(name) : std::nullopt;
            if (!other) {
                if (is_closed) return true;
                continue;
            }
            if (is_false(other)) return true;
            std::optional<JsonValue> mine = own ? own->find(name) : std::nullopt;
            const bool in_both = std::ranges::find(other_required, name) != other_required.end();
            if (mine && in_both && check(*mine, *other, depth + 1)) return true;
        }
        return false;
    }

    static double bound(const JsonValue& schema, const char* key, double fallback) {
        std::optional<JsonValue> value = schema.find(key);
        return value && value->is_number() ? *value->as_number() : fallback;
    }

    static bool ranges_differ(const JsonValue& a, const JsonValue& b, uint8_t types) {
        constexpr double kInf = std::numeric_limits<double>::infinity();
        if (types == kSchemaNumber) {
            if (bound(a, "minimum", -kInf) > bound(b, "maximum", kInf)) return true;
            if (bound(a, "exclusiveMinimum", -kInf) >= bound(b, "maximum", kInf)) return true;
            return bound(a, "minimum", -kInf) >= bound(b, "exclusiveMaximum", kInf);
        }
        if (types == kSchemaString) return bound(a, "minLength", 0) > bound(b, "maxLength", kInf);
        return types == kSchemaArray && bound(a, "minItems", 0) > bound(b, "maxItems", kInf);
    }

    // Each alternative of `a`, or one of the schemas that it has to satisfy as well.
    bool parts_differ(const JsonValue& a, const JsonValue& b, uint32_t depth) {
        for (const char* key : {"anyOf", "oneOf"}) {
            std::optional<JsonValue> list = a.find(key);
            if (!list || !list->is_array() || list->size() == 0) continue;
            std::vector<JsonValue> parts = *list->as_array();
            if (std::ranges::all_of(parts, [&](const JsonValue& part) { return check(part, b, depth + 1); }))
                return true;
        }
        std::optional<JsonValue> list = a.find("allOf");
        if (!list || !list->is_array()) return false;
        std::vector<JsonValue> parts = *list->as_array();
        return std::ranges::any_of(parts, [&](const JsonValue& part) { return check(part, b, depth + 1); });
    }

    bool check(const JsonValue& first, const JsonValue& second, uint32_t depth) {
        if (depth > kDisjointDepthMax || steps_left == 0) return false;
        --steps_left;
        const JsonValue a = refs.resolved(first), b = refs.resolved(second);
        charge(weight(a) + weight(b));
        if (is_false(a) || is_false(b)) return true;
        if (!a.is_object() || !b.is_object()) return false;
        const uint8_t types_a = schema_types(a), types_b = schema_types(b), both = types_a & types_b;
        if (both == 0) return true;
        const std::vector<JsonValue> values_a = values_of(a), values_b = values_of(b);
        const bool values_differ =
            !values_a.empty() && !values_b.empty() && std::ranges::none_of(values_a, [&](const JsonValue& x) {
                return std::ranges::any_of(values_b, [&](const JsonValue& y) { return may_equal(x, y); });
            });
        if (values_differ || ranges_differ(a, b, both) || ranges_differ(b, a, both)) return true;
        if (both == kSchemaObject && (properties_differ(a, b, depth) || properties_differ(b, a, depth))) return true;
        return parts_differ(a, b, depth) || parts_differ(b, a, depth);
    }
};

}  // namespace

uint8_t schema_type_bit(std::string_view name) {
    if (name == "null") return kSchemaNull;
    if (name == "boolean") return kSchemaBool;
    if (name == "number" || name == "integer") return kSchemaNumber;
    if (name == "string") return kSchemaString;
    if (name == "array") return kSchemaArray;
    return name == "object" ? kSchemaObject : 0;
}

uint8_t possible_types(const JsonValue& value) {
    if (value.is_null()) return kSchemaNull;
    if (value.is_bool()) return kSchemaBool;
    if (value.is_number()) return kSchemaNumber;
    if (value.is_string()) return kSchemaString;
    return value.is_array() ? kSchemaArray : kSchemaObject;
}

uint8_t schema_types(const JsonValue& schema) {
    uint8_t types = kSchemaAny;
    if (std::optional<JsonValue> type = schema.find("type")) {
        std::vector<JsonValue> names{*type};
        if (type->is_array()) names = *type->as_array();
        types = 0;
        for (const JsonValue& name : names) types |= name.is_string() ? schema_type_bit(*name.as_string()) : kSchemaAny;
    }
    if (schema.has("const")) {
        std::optional<JsonValue> value = schema.find("const");
        types &= value ? possible_types(*value) : kSchemaNull;
    }
    if (std::optional<JsonValue> list = schema.find("enum"); list && list->is_array()) {
        uint8_t of_values = 0;
        for (const JsonValue& value : *list->as_array()) of_values |= possible_types(value);
        types &= of_values;
    }
    return types;
}

bool are_disjoint(const JsonValue& a, const JsonValue& b, SchemaRefs& refs, size_t& steps_left) {
    return Disjoint{refs, steps_left}.check(a, b, 0);
}

}  // namespace lorad::proto
