// The tree behind JsonValue, for json.cpp and json_parse.cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/json/json.h"

namespace lorad {

inline constexpr uint32_t kNoJsonNode = 0xffffffffu;

struct JsonNode {
    JsonType type = JsonType::kNull;
    bool is_unsigned = false;  // an integer above INT64_MAX, held in `bits`
    uint32_t parent = kNoJsonNode;
    uint32_t first = kNoJsonNode, last = kNoJsonNode, next = kNoJsonNode;  // children, next sibling
    uint32_t n_children = 0;
    uint32_t index = 0;                       // position in the parent
    uint32_t key_begin = 0, key_bytes = 0;    // in JsonTree::text
    uint32_t text_begin = 0, text_bytes = 0;  // a string's value, or a number as it was written
    uint32_t lookup = kNoJsonNode;            // in JsonTree::lookups, for objects with many members
    union {
        uint64_t bits = 0;
        int64_t integer;
        double number;
    };
};

// One flat arena, so that a value is an index and freeing never recurses.
struct JsonTree {
    std::vector<JsonNode> nodes;
    std::string text;                            // keys, strings and number texts
    std::vector<std::vector<uint32_t>> lookups;  // members of large objects, sorted by key
    std::string name;
    ErrorCode code = ErrorCode::kInvalidRequest;

    std::string_view key(const JsonNode& node) const {
        return std::string_view(text).substr(node.key_begin, node.key_bytes);
    }
    std::string_view string(const JsonNode& node) const {
        return std::string_view(text).substr(node.text_begin, node.text_bytes);
    }
};

// "messages[2].content"; long keys are cut.
std::string json_path(const JsonTree& tree, uint32_t node);
// The beginning of a long text, cut between characters.
std::string shortened(std::string_view text, size_t n_bytes_max = 48);
// Bytes of the valid UTF-8 sequence at the start of text, which is not empty; 0 if there is none (RFC 3629: no overlong
// forms, no surrogates, nothing above U+10FFFF).
size_t utf8_sequence_bytes(std::string_view text);
// Returns the length of the prefix that needs no change in a JSON string: no quotes, escapes, controls, nor parts of
// multi-byte characters. It reads a word at a time: clients send megabytes.
size_t plain_json_bytes(std::string_view text);
Error json_error(const JsonTree& tree, std::string_view path, std::string_view what);

}  // namespace lorad
