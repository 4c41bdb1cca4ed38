// The known fields of a body, for parsers of all endpoints: honoured, accepted where their value changes nothing, or
// refused by name; unknown fields are listed.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/json/json.h"

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
    kDisabled,
    kAny
};
bool is_neutral(const JsonValue& value, Neutral neutral);

struct KnownField {
    std::string_view name;
    bool honoured = true;
    Neutral neutral = Neutral::kNone;  // when it is not honoured
    // Values that ask for something and change no answer here: accepted, and listed as unknown fields are.
    Neutral hint = Neutral::kNone;
};

// kUnsupportedParameter for a field that is known and not honoured, unless its value is neutral or a hint. Hints and
// unknown fields are added to `ignored` with their path, up to kIgnoredFieldsMax.
Status check_fields(const JsonValue& object, std::span<const KnownField> known, std::vector<std::string>& ignored);
// kUnsupportedParameter for an unknown field with a value that names an adapter by its own name ("lora_weights"): an
// answer of the base would not be what was asked for. The same for "extra_body", whose members belong beside the
// others.
Status refuse_unknown_adapters(const JsonValue& object, std::span<const KnownField> known);
// Only lists unknown fields with a value: parts of a history come back as servers wrote them, with nulls and empty
// lists. Objects only.
void list_unknown_fields(const JsonValue& object, std::span<const std::string_view> known,
                         std::vector<std::string>& ignored);
void list_unknown_fields(const JsonValue& object, std::initializer_list<std::string_view> known,
                         std::vector<std::string>& ignored);
// The path of one more field that had no effect, unless there are kIgnoredFieldsMax already.
void list_field(std::string path, std::vector<std::string>& ignored);
Error unsupported_field(std::string_view name, std::string_view why);

// Bodies that ask for an answer. One table (request_fields.cpp) has the fields at the root of all of them: what is
// known to the clients of one is known at all.
enum class Endpoint : uint8_t { kCompletions, kChats, kResponses, kMessages };
std::span<const KnownField> request_fields(Endpoint endpoint);
// Returns the fields that the endpoint honours exactly as chats do; none for completions and chats.
std::span<const std::string_view> fields_as_in_chats(Endpoint endpoint);
// check_fields() of a body's root; a field that other endpoints honour is refused with their names.
Status check_request_fields(const JsonValue& root, Endpoint endpoint, std::vector<std::string>& ignored);

std::span<const KnownField> embeddings_fields();

}  // namespace lorad::proto
