// Definitions of a JSON schema that a value satisfies if it satisfies them: {"$defs": {"a": {"$ref": "#/$defs/a"}}}.
// Validators do not end on them, and they describe no value.
#pragma once

#include <vector>

#include "proto/json/json.h"
#include "proto/schema/schema_refs.h"

namespace lorad::proto {

// kInvalidRequest names a reference of such a circle: one that leads back to its own schema by references and "allOf"
// alone, without going on to a property, an element or an alternative. `definitions`: all schemas that are referred to.
// Time grows with their size and their nesting in each other.
Status refuse_endless_references(const std::vector<JsonValue>& definitions, SchemaRefs& refs);

}  // namespace lorad::proto
