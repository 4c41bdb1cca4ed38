// Finds the other schemas that apply to a value, so that closing an object leaves each of them satisfiable. Private to
// proto/schema/.
#pragma once

#include "proto/json/json.h"

namespace lorad::proto {

// Schemas beside this one's own keywords, for the same value ("allOf", "$ref" and the like), say something about its
// parts: name properties, bound elements or refer to what may. Such as "anyOf": [{"required": ["a"]}] do not. `schema`:
// an object.
// Looks at all that is beside it; not along references.
bool others_speak_of_parts(const JsonValue& schema);

// All properties that the schema, or one beside it, requires are among those that it names.
bool names_what_it_requires(const JsonValue& schema);

}  // namespace lorad::proto
