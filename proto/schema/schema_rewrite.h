// Keywords of JSON schemas that a grammar holds only in other words. Private to proto/schema/.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/schema/schema_refs.h"

namespace lorad::proto {

// The effect of "not" on the schema that it stands in.
struct Negation {
    JsonValue value;  // the value of "not"
    bool is_enforced = false;
    bool allows_nothing = false;
    std::vector<std::string_view> types = {};   // in the place of "type", unless empty
    std::optional<std::string> values = {};     // in the place of "enum" and "const"
    std::vector<std::string_view> absent = {};  // properties that must not be there
};
// steps_left: as in are_disjoint().
Negation negation_of(const JsonValue& schema, const JsonValue& negated, SchemaRefs& refs, size_t& steps_left);

// All lists without repetition that {"type":"array","items":{"enum":[...]},"uniqueItems":true} with its bounds allows,
// as a JSON array; nothing where there are other keywords or too many values.
std::optional<std::string> distinct_lists(const JsonValue& schema);

// "propertyNames" of an object that names no properties otherwise, as "patternProperties" whose values have
// the schema of all further ones; nothing where these names have no pattern.
std::optional<std::string> named_properties(const JsonValue& names, std::string_view value_schema);

// Looks around, or back at what it has matched, or is written as other dialects have it: beyond regular languages, or
// beyond the compiler.
bool is_beyond_grammars(std::string_view pattern);
// Returns a bound or a divisor that the compiler can hold: a bound that is too large, or too near to 0, moves further
// in, so that it still holds. Nothing if it has too many digits.
std::optional<std::string> held_number(std::string_view keyword, const JsonValue& number);

enum class FormatKind : uint8_t { kEnforced, kNotEnforced, kAnnotation };
FormatKind format_kind(std::string_view name);

}  // namespace lorad::proto
