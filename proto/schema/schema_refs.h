// Resolves references within a JSON schema: JSON pointers (RFC 6901, percent-encoded as in URIs), anchors, and the
// root.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "proto/json/json.h"

namespace lorad::proto {

// One schema's; the schema outlives it, and every value that is given is part of it. Each is followed once. One thread.
class SchemaRefs {
  public:
    explicit SchemaRefs(JsonValue root) : root_(root) {}

    // The schema that "$ref", "$dynamicRef" or "$recursiveRef" with this value means. kInvalidRequest
    // for what is not there, and for schemas elsewhere, which nobody fetches.
    Result<JsonValue> target(const JsonValue& reference);
    // The schema behind one that is nothing but a reference, however often; the same schema where it
    // is none, or refers to nothing.
    JsonValue resolved(JsonValue schema);

  private:
    Result<JsonValue> followed(const JsonValue& reference);
    JsonValue behind(JsonValue schema);
    Result<JsonValue> at_pointer(std::string_view pointer, const JsonValue& reference);
    std::optional<JsonValue> at_anchor(std::string_view name);

    const JsonValue root_;
    std::unordered_map<uint32_t, std::optional<JsonValue>> targets_;  // by the reference's id; nullopt: it has none
    std::unordered_map<uint32_t, JsonValue> resolved_;                // by the schema's id
    size_t n_elements_seen_ = 0;                                      // in lists on the way of pointers
    std::optional<std::map<std::string, JsonValue, std::less<>>> anchors_;  // once one is asked for
};

bool is_reference(std::string_view keyword);
// Says something about a schema and nothing about its values, or is no keyword that validators know.
bool is_annotation(std::string_view keyword);

}  // namespace lorad::proto
