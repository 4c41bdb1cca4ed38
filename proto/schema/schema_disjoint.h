// Finds pairs of JSON schemas that no value can satisfy at once, in the cases that are easy to prove.
#pragma once

#include "proto/schema/schema_refs.h"

namespace lorad::proto {

// Bits of the types that a schema's own keywords allow.
inline constexpr uint8_t kSchemaNull = 1, kSchemaBool = 2, kSchemaNumber = 4, kSchemaString = 8, kSchemaArray = 16,
                         kSchemaObject = 32, kSchemaAny = 63;
uint8_t schema_type_bit(std::string_view name);  // 0 for a name that is none
uint8_t possible_types(const JsonValue& value);
uint8_t schema_types(const JsonValue& schema);

// False where it cannot be shown, also for want of time: `steps_left` bounds the work of several calls.
bool are_disjoint(const JsonValue& a, const JsonValue& b, SchemaRefs& refs, size_t& steps_left);

}  // namespace lorad::proto
