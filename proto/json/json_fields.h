// A struct's fields are listed once, and written and read as a JSON object by that list, a function object that both go
// through:
//
//   constexpr auto kPointFields = [](auto& fields, auto& point) { fields("x", point.x); fields("name", point.name); };
//   write_fields(writer.begin_object(), point, kPointFields).end_object();
//   TRY(read_fields(document.root(), point, kPointFields));
//
// Empty texts and absent values are not written; what is not there when read stays as it is.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/json/json.h"

namespace lorad {

class FieldWriter {
  public:
    explicit FieldWriter(JsonWriter& writer) : writer_(writer) {}

    template <typename T>
        requires std::same_as<T, bool> || std::integral<T> || std::floating_point<T>
    void operator()(std::string_view key, const T& value) {
        writer_.field(key, value);
    }
    void operator()(std::string_view key, const std::string& text) {
        if (!text.empty()) writer_.field(key, text);
    }
    template <typename T>
    void operator()(std::string_view key, const std::optional<T>& value) {
        if (value) writer_.field(key, *value);
    }
    void operator()(std::string_view key, const std::vector<std::string>& texts) {
        writer_.key(key).begin_array();
        for (const std::string& text : texts) writer_.value(text);
        writer_.end_array();
    }
    // An object whose keys are the pairs' first halves.
    template <typename T>
    void operator()(std::string_view key, const std::vector<std::pair<std::string, T>>& pairs) {
        writer_.key(key).begin_object();
        for (const auto& [name, value] : pairs) writer_.field(name, value);
        writer_.end_object();
    }
    // JSON already.
    void raw(std::string_view key, const std::string& json) {
        if (!json.empty()) writer_.key(key).raw(json);
    }
    template <typename T, typename List>
    void object(std::string_view key, const T& value, const List& list) {
        writer_.key(key);
        write(value, list);
    }
    template <typename T, typename List>
    void object(std::string_view key, const std::optional<T>& value, const List& list) {
        if (value) object(key, *value, list);
    }
    template <typename T, typename List>
    void objects(std::string_view key, const std::vector<T>& values, const List& list) {
        writer_.key(key).begin_array();
        for (const T& value : values) write(value, list);
        writer_.end_array();
    }

  private:
    template <typename T, typename List>
    void write(const T& value, const List& list) {
        writer_.begin_object();
        list(*this, value);
        writer_.end_object();
    }

    JsonWriter& writer_;
};

// Keeps the first error, and reads nothing behind it.
class FieldReader {
  public:
    explicit FieldReader(const JsonValue& root) : root_(root) {}
    Status status() const { return error_ ? Status(*error_) : ok_status(); }

    template <typename T>
    void operator()(std::string_view key, T& to) {
        if (const std::optional<JsonValue> value = find(key)) take(read(*value, to));
    }
    template <typename T>
    void operator()(std::string_view key, std::optional<T>& to) {
        if (find(key)) (*this)(key, to.emplace());
    }
    void raw(std::string_view key, std::string& to) {
        if (const std::optional<JsonValue> value = find(key)) to = value->dump();
    }
    template <typename T, typename List>
    void object(std::string_view key, T& to, const List& list) {
        if (const std::optional<JsonValue> value = find(key)) take(read_object(*value, to, list));
    }
    template <typename T, typename List>
    void object(std::string_view key, std::optional<T>& to, const List& list) {
        if (find(key)) object(key, to.emplace(), list);
    }
    template <typename T, typename List>
    void objects(std::string_view key, std::vector<T>& to, const List& list) {
        const std::optional<JsonValue> value = find(key);
        if (!value) return;
        const Result<std::vector<JsonValue>> elements = value->as_array();
        if (!elements.ok()) return take(elements.error());
        for (const JsonValue& element : *elements) take(read_object(element, to.emplace_back(), list));
    }

  private:
    std::optional<JsonValue> find(std::string_view key) const { return error_ ? std::nullopt : root_.find(key); }
    void take(const Status& status) {
        if (!status.ok() && !error_) error_ = status.error();
    }

    template <typename T, typename List>
    static Status read_object(const JsonValue& value, T& to, const List& list) {
        if (!value.is_object()) return value.as_object().error();
        FieldReader fields(value);
        list(fields, to);
        return fields.status();
    }
    static Status read(const JsonValue& value, bool& to) {
        TRY_ASSIGN(to, value.as_bool());
        return ok_status();
    }
    static Status read(const JsonValue& value, double& to) {
        TRY_ASSIGN(to, value.as_number());
        return ok_status();
    }
    template <std::unsigned_integral T>
    static Status read(const JsonValue& value, T& to) {
        TRY_ASSIGN(const uint64_t number, value.as_uint(std::numeric_limits<T>::max()));
        to = T(number);
        return ok_status();
    }
    template <std::signed_integral T>
    static Status read(const JsonValue& value, T& to) {
        TRY_ASSIGN(const int64_t number, value.as_int(std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
        to = T(number);
        return ok_status();
    }
    static Status read(const JsonValue& value, std::string& to) {
        TRY_ASSIGN(const std::string_view text, value.as_string());
        to = std::string(text);
        return ok_status();
    }
    static Status read(const JsonValue& value, std::vector<std::string>& to) {
        TRY_ASSIGN(const std::vector<JsonValue> elements, value.as_array());
        for (const JsonValue& element : elements) TRY(read(element, to.emplace_back()));
        return ok_status();
    }
    template <typename T>
    static Status read(const JsonValue& value, std::vector<std::pair<std::string, T>>& to) {
        TRY_ASSIGN(const std::vector<JsonMember> members, value.as_object());
        for (const JsonMember& member : members) TRY(read(member.value, to.emplace_back(member.key, T()).second));
        return ok_status();
    }

    const JsonValue& root_;
    std::optional<Error> error_;
};

// Within an object that is begun.
template <typename T, typename List>
JsonWriter& write_fields(JsonWriter& writer, const T& value, const List& list) {
    FieldWriter fields(writer);
    list(fields, value);
    return writer;
}

template <typename T, typename List>
Status read_fields(const JsonValue& root, T& value, const List& list) {
    if (!root.is_object()) return root.as_object().error();
    FieldReader fields(root);
    list(fields, value);
    return fields.status();
}

// A struct alone: an object of its fields, and one read from such a text. `name` begins what is said of errors.
template <typename T, typename List>
std::string fields_json(const T& value, const List& list) {
    JsonWriter writer;
    return write_fields(writer.begin_object(), value, list).end_object().take();
}

template <typename T, typename List>
Result<T> parse_fields(std::string_view json, const char* name, const List& list) {
    TRY_ASSIGN(const JsonDocument document, parse_json(json, {.name = name}));
    T value;
    TRY(read_fields(document.root(), value, list));
    return value;
}

}  // namespace lorad
