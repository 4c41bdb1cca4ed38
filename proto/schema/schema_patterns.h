// Finds out if one name can match two expressions of "patternProperties", and chooses what is kept of them then.
// Private to proto/schema/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/json/json.h"

namespace lorad::proto {

enum class PatternOverlap : uint8_t {
    kNone,
    kSome,
    // expressions with more than letters, classes, groups, repetitions and anchors at their ends; or too much work
    kUnknown,
};

// Patterns match as in validators: anywhere in the name, unless "^" and "$" say otherwise. `steps_left` bounds the work
// of several calls.
PatternOverlap pattern_overlap(std::string_view a, std::string_view b, size_t& steps_left);

struct PatternProperty {
    std::string pattern;
    JsonValue schema;
};
struct ChosenPatterns {
    std::vector<PatternProperty> kept;
    std::vector<JsonValue> lost;  // schemas of patterns that no grammar holds
};
// The compiler takes patterns only where a name matches one of them at most. Of several that a name may match, those
// with one schema become one, which says the same; of the others the first is kept.
ChosenPatterns choose_patterns(std::span<const JsonMember> properties, size_t& steps_left);

}  // namespace lorad::proto
