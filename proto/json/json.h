// JSON as lorad reads and writes it: bounded, exact, every error with its place. The library behind it stays in
// json.cpp.
// Reading: parse_json gives a JsonDocument (the owner) whose root() and everything reached from it are JsonValue views.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/result.h"

namespace lorad {

enum class JsonType : uint8_t { kNull, kBool, kInteger, kNumber, kString, kArray, kObject };

struct JsonParseOptions {
    std::string name = {};  // begins every message of this document ("config.json"); empty for request bodies
    ErrorCode code = ErrorCode::kInvalidRequest;  // for every error about this document
    size_t max_bytes = size_t{16} << 20;
    uint32_t max_depth = 64;            // nested arrays and objects
    uint32_t max_values = 1u << 18;     // values in all, 56 bytes of memory each; counted before any is built
    bool allow_duplicate_keys = false;  // true: the last one counts, as in Python
};

struct JsonTree;
struct JsonMember;

// A view of one value; two words, copied freely. Valid while its JsonDocument lives. Any number of threads may read.
// Errors carry the document's code, "name: path: expected number, found string" and, as param, the path.
class JsonValue {
  public:
    JsonType type() const;
    bool is_null() const { return type() == JsonType::kNull; }
    bool is_bool() const { return type() == JsonType::kBool; }
    bool is_integer() const { return type() == JsonType::kInteger; }
    bool is_number() const { return type() == JsonType::kNumber || is_integer(); }
    bool is_string() const { return type() == JsonType::kString; }
    bool is_array() const { return type() == JsonType::kArray; }
    bool is_object() const { return type() == JsonType::kObject; }

    // "rope_scaling.factor", "messages[2].content"; empty for the root.
    std::string path() const;

    Result<bool> as_bool() const;
    // Whole numbers written without fraction or exponent; 8.0 is refused, as is what does not fit.
    Result<int64_t> as_int(int64_t min = std::numeric_limits<int64_t>::min(),
                           int64_t max = std::numeric_limits<int64_t>::max()) const;
    Result<uint64_t> as_uint(uint64_t max = std::numeric_limits<uint64_t>::max()) const;
    Result<double> as_number() const;            // integers too; always finite
    Result<std::string_view> as_string() const;  // valid UTF-8; may hold NUL
    Result<std::vector<JsonValue>> as_array() const;
    Result<std::vector<JsonMember>> as_object() const;  // in the order of the text

    size_t size() const;                   // elements or members; 0 for everything else
    uint32_t id() const { return node_; }  // the index of this value in its document

    // The member's value; nullopt if this is no object, has no such member, or holds null there.
    std::optional<JsonValue> find(std::string_view key) const;
    bool has(std::string_view key) const;                   // also true for null
    Result<JsonValue> require(std::string_view key) const;  // absent, null or not an object: an error

    // The member's value, or the fallback where find() gives nothing; a wrong type is an error.
    Result<bool> bool_or(std::string_view key, bool fallback) const;
    Result<int64_t> int_or(std::string_view key, int64_t fallback, int64_t min = std::numeric_limits<int64_t>::min(),
                           int64_t max = std::numeric_limits<int64_t>::max()) const;
    Result<double> number_or(std::string_view key, double fallback) const;
    Result<std::string_view> string_or(std::string_view key, std::string_view fallback) const;

    // An error about this value, for checks of the caller's own: error("expected 1..256, found 0").
    Error error(std::string_view what) const;
    // "string \"four\"", "number 4.5", "array of 3": for messages; long texts are cut.
    std::string describe() const;
    std::string dump() const;  // compact JSON text; numbers as they were written

  private:
    friend class JsonDocument;
    JsonValue(const JsonTree* tree, uint32_t node) : tree_(tree), node_(node) {}
    Error wrong_type(std::string_view expected) const;
    std::optional<uint32_t> find_node(std::string_view key) const;

    const JsonTree* tree_;
    uint32_t node_;
};

struct JsonMember {
    std::string_view key;
    JsonValue value;
};

// Owns a parsed text. Move-only; views stay valid when it is moved.
class JsonDocument {
  public:
    explicit JsonDocument(std::unique_ptr<JsonTree> tree);
    ~JsonDocument();
    JsonDocument(JsonDocument&&) noexcept;
    JsonDocument& operator=(JsonDocument&&) noexcept;

    JsonValue root() const;

  private:
    std::unique_ptr<JsonTree> tree_;
};

// The whole text must be one JSON value in UTF-8 (RFC 8259: no NaN, no comments, no trailing commas; numbers that
// overflow a double are errors). Syntax errors name line, column and byte.
Result<JsonDocument> parse_json(std::string_view text, const JsonParseOptions& options = {});

// Text with every byte that is not part of valid UTF-8 replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

// A quoted and escaped JSON string; invalid UTF-8 replaced.
std::string json_quote(std::string_view text);

// The same for messages about names that clients chose: cut, with "...", where they are long.
std::string json_quote_short(std::string_view text);

// Writes compact JSON. Commas and colons are its business; nesting is checked (CHECK).
//   JsonWriter w; w.begin_object().field("id", 7).key("x").begin_array().value(1.5).end_array().end_object(); w.take();
class JsonWriter {
  public:
    JsonWriter& begin_object();
    JsonWriter& end_object();
    JsonWriter& begin_array();
    JsonWriter& end_array();
    JsonWriter& key(std::string_view name);

    JsonWriter& value(std::string_view text);
    JsonWriter& value(const std::string& text) { return value(std::string_view(text)); }
    JsonWriter& value(const char* text) { return value(std::string_view(text)); }
    JsonWriter& value(bool flag);
    JsonWriter& value(int number) { return value(int64_t{number}); }
    JsonWriter& value(unsigned number) { return value(uint64_t{number}); }
    JsonWriter& value(int64_t number);
    JsonWriter& value(uint64_t number);
    JsonWriter& value(double number);  // shortest text that reads back the same; null if not finite
    JsonWriter& value(float number);
    JsonWriter& null();
    JsonWriter& raw(std::string_view json);  // a complete JSON value, unchecked

    template <typename T>
    JsonWriter& field(std::string_view name, const T& member) {
        return key(name).value(member);
    }

    // The finished text; the writer is empty afterwards. Everything begun must be ended.
    std::string take();

  private:
    void before_value();

    std::string text_;
    std::vector<bool> nesting_;  // true: object
    bool needs_comma_ = false;
    bool has_key_ = false;
};

}  // namespace lorad
