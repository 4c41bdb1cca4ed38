#include "proto/schema/schema_beside.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "proto/schema/schema_refs.h"

namespace lorad::proto {
namespace {

constexpr std::array<std::string_view, 9> kInPlace = {
    "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"};
constexpr std::array<std::string_view, 13> kOfParts = {"properties",
                                                       "patternProperties",
                                                       "additionalProperties",
                                                       "unevaluatedProperties",
                                                       "propertyNames",
                                                       "minProperties",
                                                       "items",
                                                       "prefixItems",
                                                       "additionalItems",
                                                       "unevaluatedItems",
                                                       "contains",
                                                       "const",
                                                       "enum"};

template <size_t n>
bool is_one_of(std::string_view key, const std::array<std::string_view, n>& keys) {
    return std::ranges::find(keys, key) != keys.end();
}

// Returns a keyword's schemas for the same value: one, a list, or those that depend on a property.
std::vector<JsonValue> schemas_beside(const JsonMember& member) {
    if (!is_one_of(member.key, kInPlace)) return {};
    if (member.value.is_array()) return *member.value.as_array();
    if (!member.key.starts_with("depend")) return {member.value};
    std::vector<JsonValue> schemas;
    if (!member.value.is_object()) return schemas;
    for (const JsonMember& one : *member.value.as_object()) schemas.push_back(one.value);
    return schemas;
}

bool speaks_of_parts(const JsonValue& schema) {
    if (!schema.is_object()) return false;
    const std::vector<JsonMember> members = *schema.as_object();
    return std::ranges::any_of(members, [](const JsonMember& member) { return is_one_of(member.key, kOfParts); }) ||
           others_speak_of_parts(schema);
}

bool all_are_in(const JsonValue& names, const std::optional<JsonValue>& properties) {
    if (!names.is_array()) return true;
    const std::vector<JsonValue> list = *names.as_array();
    return std::ranges::all_of(list, [&](const JsonValue& name) {
        return name.is_string() && properties && properties->has(*name.as_string());
    });
}

bool requires_only(const JsonValue& schema, const std::optional<JsonValue>& properties) {
    if (!schema.is_object()) return true;
    for (const JsonMember& member : *schema.as_object()) {
        if (member.key == "required" && !all_are_in(member.value, properties)) return false;
        const bool is_by_property = member.key == "dependentRequired" || member.key == "dependencies";
        if (is_by_property && member.value.is_object()) {
            for (const JsonMember& one : *member.value.as_object()) {
                if (!all_are_in(one.value, properties)) return false;
            }
        }
        if (member.key == "not") continue;
        const std::vector<JsonValue> beside = schemas_beside(member);
        if (!std::ranges::all_of(beside, [&](const JsonValue& one) { return requires_only(one, properties); }))
            return false;
    }
    return true;
}

}  // namespace

bool others_speak_of_parts(const JsonValue& schema) {
    for (const JsonMember& member : *schema.as_object()) {
        if (is_reference(member.key)) return true;
        const std::vector<JsonValue> beside = schemas_beside(member);
        if (std::ranges::any_of(beside, speaks_of_parts)) return true;
    }
    return false;
}

bool names_what_it_requires(const JsonValue& schema) { return requires_only(schema, schema.find("properties")); }

}  // namespace lorad::proto
