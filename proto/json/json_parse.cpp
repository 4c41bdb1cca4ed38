// Reading of JSON: text to tree.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "proto/base/format.h"
#include "proto/json/json_tree_builder.h"

namespace lorad {
namespace {

// Reads RFC 8259, without recursion. Long strings at a word a time: clients send megabytes.
class JsonReader {
  public:
    JsonReader(std::string_view text, JsonTreeBuilder& builder) : text_(text), builder_(builder) {}

    bool read() {
        if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;  // some editors begin files with it
        bool wants_value = true;                         // else what follows a value
        for (;;) {
            skip_blanks();
            if (wants_value) {
                if (!value(wants_value)) return false;
            } else if (!after_value(wants_value)) {
                return false;
            } else if (!wants_value && !builder_.container() && at_ == text_.size()) {
                return true;
            }
        }
    }

  private:
    bool at_end() const { return at_ == text_.size(); }
    char peek() const { return at_end() ? '\0' : text_[at_]; }
    void skip_blanks() {
        while (!at_end() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
            ++at_;
    }

    bool bad(std::string_view expected) {
        if (at_end()) return builder_.parse_error(at_, format("expected {}, found the end", expected));
        size_t n = 1;  // the whole character
        while (at_ + n < text_.size() && (static_cast<uint8_t>(text_[at_ + n]) & 0xc0) == 0x80 && n < 4) ++n;
        return builder_.parse_error(at_, format("expected {}, found {}", expected, json_quote(text_.substr(at_, n))));
    }

    bool literal(std::string_view word) {
        if (text_.substr(at_, word.size()) != word) return bad("a value");
        at_ += word.size();
        return true;
    }

    // Parses the value that begins here; `wants_value` becomes true if another value must be read first.
    bool value(bool& wants_value) {
        wants_value = false;
        switch (peek()) {
            case '{':
                ++at_;
                if (!builder_.start_object()) return false;
                skip_blanks();
                if (peek() == '}') return true;  // after_value() closes it
                wants_value = true;
                return key();
            case '[':
                ++at_;
                if (!builder_.start_array()) return false;
                skip_blanks();
                wants_value = peek() != ']';
                return true;
            case '"': {
                const size_t begin = builder_.text().size();
                return string() && builder_.string(begin);
            }
            case 't': return literal("true") && builder_.boolean(true);
            case 'f': return literal("false") && builder_.boolean(false);
            case 'n': return literal("null") && builder_.null();
            default: return number();
        }
    }

    // A comma with what comes next, the end of what stands open, or nothing more.
    bool after_value(bool& wants_value) {
        const std::optional<JsonType> container = builder_.container();
        if (!container) return at_end() || bad("the end");
        const bool is_object = *container == JsonType::kObject;
        if (peek() == (is_object ? '}' : ']') && !at_end()) {
            ++at_;
            return is_object ? builder_.end_object() : builder_.end_array();
        }
        if (peek() != ',') return bad(is_object ? "\",\" or \"}\"" : "\",\" or \"]\"");
        ++at_;
        wants_value = true;
        skip_blanks();
        return !is_object || key();
    }

    bool key() {
        if (peek() != '"') return bad("a key");
        const size_t begin = builder_.text().size();
        if (!string()) return false;
        skip_blanks();
        if (peek() != ':') return bad("\":\"");
        ++at_;
        builder_.key(begin);
        return true;
    }

    bool string() {
        std::string& out = builder_.text();
        for (++at_;;) {
            const size_t n = plain_json_bytes(text_.substr(at_));
            out.append(text_.substr(at_, n));
            at_ += n;
            if (at_end()) return bad("the end of a string");
            const auto byte = static_cast<uint8_t>(text_[at_]);
            if (byte == '"') {
                ++at_;
                return true;
            }
            if (byte == '\\') {
                if (!escape(out)) return false;
            } else if (byte < 0x20) {
                return builder_.parse_error(
                    at_, format("the control character {:#04x} in a string; write it as an escape", byte));
            } else {
                const size_t n_bytes = utf8_sequence_bytes(text_.substr(at_));
                if (n_bytes == 0)
                    return builder_.parse_error(at_, format("the byte {:#04x} in a string is not UTF-8", byte));
                out.append(text_.substr(at_, n_bytes));
                at_ += n_bytes;
            }
        }
    }

    // The four digits after "\u".
    std::optional<uint32_t> hex4() {
        if (at_ + 6 > text_.size() || text_[at_] != '\\' || text_[at_ + 1] != 'u') return std::nullopt;
        uint32_t unit = 0;
        const char* begin = text_.data() + at_ + 2;
        auto [end, error] = std::from_chars(begin, begin + 4, unit, 16);
        if (error != std::errc() || end != begin + 4) return std::nullopt;
        at_ += 6;
        return unit;
    }

    bool escape(std::string& out) {
        const size_t begin = at_;
        const char kind = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
        constexpr std::string_view kKinds = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
        const size_t found = kind == '\0' ? std::string_view::npos : kKinds.find(kind);
        if (found != std::string_view::npos) {
            out += kMeant[found];
            at_ += 2;
            return true;
        }
        std::optional<uint32_t> code = hex4();
        if (code && *code >= 0xd800 && *code < 0xdc00) {
            const std::optional<uint32_t> low = hex4();
            code = low && *low >= 0xdc00 && *low < 0xe000
                       ? std::optional(0x10000 + ((*code - 0xd800) << 10) + (*low - 0xdc00))
                       : std::nullopt;
        } else if (code && *code >= 0xdc00 && *code < 0xe000) {
            code.reset();
        }
        if (!code) return builder_.parse_error(begin, "no escape that JSON knows, or half of a pair of them");
        append_utf8(out, *code);
        return true;
    }

    static void append_utf8(std::string& out, uint32_t code) {
        if (code < 0x80) {
            out += static_cast<char>(code);
            return;
        }
        const int n_more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
        constexpr uint8_t kLead[] = {0, 0xc0, 0xe0, 0xf0};
        out += static_cast<char>(kLead[n_more] | (code >> (6 * n_more)));
        for (int i = n_more - 1; i >= 0; --i) out += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3f));
    }

    size_t n_digits() const {
        size_t n = 0;
        while (at_ + n < text_.size() && text_[at_ + n] >= '0' && text_[at_ + n] <= '9') ++n;
        return n;
    }

    bool number() {
        const size_t begin = at_;
        const bool is_negative = peek() == '-';
        if (is_negative) ++at_;
        const size_t n_whole = n_digits();
        if (n_whole == 0) return bad(is_negative ? "a digit" : "a value");
        if (n_whole > 1 && text_[at_] == '0') return bad("no zero before a number");
        at_ += n_whole;
        bool is_whole = true;
        if (peek() == '.') {
            is_whole = false;
            ++at_;
            const size_t n = n_digits();
            if (n == 0) return bad("a digit");
            at_ += n;
        }
        if (peek() == 'e' || peek() == 'E') {
            is_whole = false;
            ++at_;
            if (peek() == '+' || peek() == '-') ++at_;
            const size_t n = n_digits();
            if (n == 0) return bad("a digit");
            at_ += n;
        }
        const std::string_view written = text_.substr(begin, at_ - begin);
        const char* end = written.data() + written.size();
        int64_t whole = 0;
        uint64_t large = 0;
        if (is_whole && std::from_chars(written.data(), end, whole).ec == std::errc())
            return builder_.number_integer(whole);
        if (is_whole && !is_negative && std::from_chars(written.data(), end, large).ec == std::errc())
            return builder_.number_unsigned(large);
        double number = 0.0;
        if (std::from_chars(written.data(), end, number).ec != std::errc()) {
            number = std::strtod(std::string(written).c_str(), nullptr);  // too small is 0, or nearly
            if (std::isinf(number)) return builder_.parse_error(begin, "a number that is too large");
        }
        return builder_.number_float(number, written);
    }

    std::string_view text_;
    JsonTreeBuilder& builder_;
    size_t at_ = 0;
};

// Counts the values of a valid text, and estimates those of another one, without building any: every value but the root
// is an element of a container, and a container that is not empty has one element more than commas.
uint64_t count_values(std::string_view text) {
    uint64_t n = 1;
    for (size_t at = 0; at < text.size(); ++at) {
        const char c = text[at];
        if (c == '"') {
            for (++at; at < text.size(); ++at) {
                at += plain_json_bytes(text.substr(at));
                if (at >= text.size() || text[at] == '"') break;
                at += text[at] == '\\';
            }
        } else if (c == ',') {
            ++n;
        } else if (c == '[' || c == '{') {
            const size_t next = text.find_first_not_of(" \t\r\n", at + 1);
            n += next != std::string_view::npos && text[next] != ']' && text[next] != '}';
        }
    }
    return n;
}

}  // namespace

Result<JsonDocument> parse_json(std::string_view text, const JsonParseOptions& options) {
    auto tree = std::make_unique<JsonTree>();
    tree->name = options.name;
    tree->code = options.code;
    // Offsets into the arena's text are 32 bits.
    const size_t max_bytes = std::min<size_t>(options.max_bytes, size_t{1} << 31);
    if (text.size() > max_bytes) {
        return json_error(*tree, "", format("{} bytes of JSON, at most {} allowed", text.size(), max_bytes));
    }
    if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
        return json_error(*tree, "", "expected JSON, found nothing");
    }
    // A text has at most as many values as bytes.
    if (text.size() > options.max_values) {
        const uint64_t n_values = count_values(text);
        if (n_values > options.max_values)
            return json_error(*tree, "", format("more than {} values in all", options.max_values));
        tree->nodes.reserve(n_values);
    }
    JsonTreeBuilder builder(*tree, options, text);
    if (!JsonReader(text, builder).read()) return *std::move(builder.error);
    return JsonDocument(std::move(tree));
}

}  // namespace lorad
