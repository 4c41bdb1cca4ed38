// Which fields of a body are known, for parsers of all endpoints: honoured, accepted where their
// value changes nothing, refused by name otherwise; what nobody knows is listed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/json.h"

namespace lorad::proto {

// The value with which a parameter that is not honoured changes nothing, and so is accepted.
enum class Neutral : uint8_t {
    kNone,
    kFalse,
    kTrue,
    kZero,
    kOne,
    kEmpty,
    kNoTools,
    kTextOnly,
    kAuto,
    kMedium,
    kAny
};
bool is_neutral(const JsonValue& value, Neutral neutral);

struct KnownField {
    std::string_view name;
    bool honoured = true;
    Neutral neutral = Neutral::kNone;  // where it is not honoured
    // Values that ask for something and change no answer here: accepted, and listed as unknown fields are.
    Neutral hint = Neutral::kNone;
};

// kUnsupportedParameter for a field that is known and not honoured, unless its value is neutral or a hint.
// Hints, and fields that nobody knows, are added to `ignored` with their path, up to kIgnoredFieldsMax.
Status check_fields(const JsonValue& object, std::span<const KnownField> known,
                    std::vector<std::string>& ignored);
// Only lists what nobody knows, where it says something: parts of a history come back as servers wrote them, with
// nulls and empty lists. Objects only.
void list_unknown_fields(const JsonValue& object, std::span<const std::string_view> known,
                         std::vector<std::string>& ignored);
// Of POST /v1/completions and /v1/chat/completions, of /v1/responses, /v1/messages and
// /v1/embeddings: what the interface's description has to tell.
std::vector<KnownField> generation_fields(bool chat);
std::span<const KnownField> responses_fields();
std::span<const KnownField> messages_fields();
std::span<const KnownField> embeddings_fields();
Error unsupported_field(std::string_view name, std::string_view why);

}  // namespace lorad::proto
