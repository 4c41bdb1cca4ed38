// The writing half of proto/json/json.h.
#include <charconv>
#include <cmath>
#include <cstring>

#include "proto/base/format.h"
#include "proto/json/json.h"
#include "proto/json/json_tree.h"

namespace lorad {

size_t utf8_sequence_bytes(std::string_view text) {
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
    const uint8_t lead = byte(0);
    if (lead < 0x80) return 1;
    size_t length = 0;
    uint8_t second_min = 0x80, second_max = 0xbf;
    if (lead >= 0xc2 && lead <= 0xdf) {
        length = 2;
    } else if (lead >= 0xe0 && lead <= 0xef) {
        length = 3;
        if (lead == 0xe0) second_min = 0xa0;
        if (lead == 0xed) second_max = 0x9f;
    } else if (lead >= 0xf0 && lead <= 0xf4) {
        length = 4;
        if (lead == 0xf0) second_min = 0x90;
        if (lead == 0xf4) second_max = 0x8f;
    } else {
        return 0;
    }
    if (text.size() < length || byte(1) < second_min || byte(1) > second_max) return 0;
    for (size_t i = 2; i < length; ++i) {
        if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
    }
    return length;
}

namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

template <typename Float>
std::string number_text(Float number) {
    if (!std::isfinite(number)) return "null";
    char buffer[64];
    const auto end = std::to_chars(buffer, buffer + sizeof(buffer), number);
    return std::string(buffer, end.ptr);
}

}  // namespace

std::string replace_invalid_utf8(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    while (!text.empty()) {
        const size_t bytes = utf8_sequence_bytes(text);
        out += bytes ? text.substr(0, bytes) : kReplacement;
        text.remove_prefix(bytes ? bytes : 1);
    }
    return out;
}

size_t plain_json_bytes(std::string_view text) {
    constexpr uint64_t kOnes = 0x0101010101010101ull, kHigh = 0x8080808080808080ull;
    const auto zero_bytes = [](uint64_t word) { return (word - kOnes) & ~word & kHigh; };
    const auto any_equal = [&](uint64_t word, uint8_t byte) { return zero_bytes(word ^ (kOnes * byte)); };
    size_t n = 0;
    for (; n + 8 <= text.size(); n += 8) {
        uint64_t word;
        std::memcpy(&word, text.data() + n, 8);
        const uint64_t controls = (word - kOnes * 0x20) & ~word & kHigh;
        if ((word & kHigh) | controls | any_equal(word, '"') | any_equal(word, '\\') | any_equal(word, 0x7f)) break;
    }
    const auto is_plain = [](char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; };
    while (n < text.size() && is_plain(text[n])) ++n;
    return n;
}

std::string json_quote(std::string_view text) {
    std::string out;
    out.reserve(text.size() + 2);
    out += '"';
    for (;;) {
        const size_t n_plain = plain_json_bytes(text);
        out += text.substr(0, n_plain);
        text.remove_prefix(n_plain);
        if (text.empty()) break;
        const size_t bytes = utf8_sequence_bytes(text);
        const char c = text[0];
        if (bytes != 1) {
            out += bytes ? text.substr(0, bytes) : kReplacement;
        } else if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (c == '\n') {
            out += "\\n";
        } else if (c == '\r') {
            out += "\\r";
        } else if (c == '\t') {
            out += "\\t";
        } else if (static_cast<uint8_t>(c) < 0x20 || c == 0x7f) {
            out += format("\\u{:04x}", static_cast<uint8_t>(c));
        } else {
            out += c;
        }
        text.remove_prefix(bytes ? bytes : 1);
    }
    out += '"';
    return out;
}

void JsonWriter::before_value() {
    if (nesting_.empty()) {
        CHECK(text_.empty());
    } else if (nesting_.back()) {
        CHECK(has_key_);
    } else if (needs_comma_) {
        text_ += ',';
    }
    has_key_ = false;
    needs_comma_ = true;
}

JsonWriter& JsonWriter::begin_object() {
    before_value();
    text_ += '{';
    nesting_.push_back(true);
    needs_comma_ = false;
    return *this;
}

JsonWriter& JsonWriter::end_object() {
    CHECK(!nesting_.empty() && nesting_.back() && !has_key_);
    nesting_.pop_back();
    text_ += '}';
    needs_comma_ = true;
    return *this;
}

JsonWriter& JsonWriter::begin_array() {
    before_value();
    text_ += '[';
    nesting_.push_back(false);
    needs_comma_ = false;
    return *this;
}

JsonWriter& JsonWriter::end_array() {
    CHECK(!nesting_.empty() && !nesting_.back());
    nesting_.pop_back();
    text_ += ']';
    needs_comma_ = true;
    return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
    CHECK(!nesting_.empty() && nesting_.back() && !has_key_);
    if (needs_comma_) text_ += ',';
    text_ += json_quote(name);
    text_ += ':';
    has_key_ = true;
    return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) { return raw(json_quote(text)); }
JsonWriter& JsonWriter::value(bool flag) { return raw(flag ? "true" : "false"); }
JsonWriter& JsonWriter::value(int64_t number) { return raw(format("{}", number)); }
JsonWriter& JsonWriter::value(uint64_t number) { return raw(format("{}", number)); }
JsonWriter& JsonWriter::value(double number) { return raw(number_text(number)); }
JsonWriter& JsonWriter::value(float number) { return raw(number_text(number)); }
JsonWriter& JsonWriter::null() { return raw("null"); }

JsonWriter& JsonWriter::raw(std::string_view json) {
    before_value();
    text_ += json;
    return *this;
}

std::string JsonWriter::take() {
    CHECK(nesting_.empty() && !text_.empty());
    std::string text = std::move(text_);
    text_.clear();
    needs_comma_ = false;
    return text;
}

}  // namespace lorad
