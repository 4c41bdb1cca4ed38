#include "proto/schema/gbnf.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <vector>

#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::proto {
namespace {

constexpr uint32_t kRepetitionsMax = 2000;  // llama.cpp's limit
constexpr uint32_t kGroupDepthMax = 64;     // nested groups
constexpr uint32_t kCodeMax = 0x10ffff;

bool is_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

class Converter {
  public:
    explicit Converter(std::string_view text) : text_(text) {}

    Result<std::string> convert() {
        skip_blanks(true);
        while (!at_end()) TRY(rule());
        std::string out = "start: " + rule_name("root") + "\n";
        for (const auto& [name, rule] : rules_) {
            if (!rule.is_defined) {
                return make_error(ErrorCode::kInvalidRequest,
                                  name == "root" ? "the grammar has no rule called root"
                                                 : format("the rule {} is used and nowhere defined", name));
            }
            out += rule_name(name) + ": " + rule.body + "\n";
        }
        return out;
    }

  private:
    struct Rule {
        size_t number = 0;
        bool is_defined = false;
        std::string body;
    };

    bool at_end() const { return at_ >= text_.size(); }
    char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }

    // Line ends are blanks within groups, and where an alternative is awaited.
    void skip_blanks(bool across_lines) {
        while (!at_end()) {
            const char c = peek();
            if (c == '#') {
                while (!at_end() && peek() != '\n' && peek() != '\r') ++at_;
            } else if (c == ' ' || c == '\t' || (across_lines && (c == '\n' || c == '\r'))) {
                ++at_;
            } else {
                return;
            }
        }
    }

    Error bad(std::string_view what) const {
        const std::string_view before = text_.substr(0, at_);
        const size_t line = static_cast<size_t>(std::count(before.begin(), before.end(), '\n')) + 1;
        const size_t newline = before.rfind('\n');
        const size_t column = newline == std::string_view::npos ? at_ + 1 : at_ - newline;
        return make_error(ErrorCode::kInvalidRequest,
                          format("line {} column {} of the grammar: {}", line, column, what));
    }
    Error expected(std::string_view what) const {
        return bad(at_end() ? format("expected {}, found the end", what)
                            : format("expected {}, found {}", what, json_quote(text_.substr(at_, 1))));
    }

    // Any name becomes one that Lark's rules may have; the number keeps different names apart.
    std::string rule_name(std::string_view name) {
        Rule& rule = rules_.try_emplace(std::string(name), Rule{rules_.size(), false, {}}).first->second;
        std::string out = format("r{}_", rule.number);
        for (char c : name) {
            const bool is_upper = c >= 'A' && c <= 'Z';
            out += is_upper ? static_cast<char>(c - 'A' + 'a') : c == '-' ? '_' : c;
        }
        return out;
    }

    Result<std::string> name() {
        const size_t begin = at_;
        while (!at_end() && is_name_char(peek())) ++at_;
        if (at_ == begin) return expected("a rule's name");
        return std::string(text_.substr(begin, at_ - begin));
    }

    Status rule() {
        TRY_ASSIGN(std::string own, name());
        (void)rule_name(own);
        skip_blanks(false);
        if (text_.substr(at_, 3) != "::=") return expected("::=");
        at_ += 3;
        skip_blanks(true);
        TRY_ASSIGN(std::string body, alternatives(0));
        Rule& entry = rules_.at(own);
        if (entry.is_defined) return bad(format("the rule {} is defined twice", own));
        entry.is_defined = true;
        entry.body = std::move(body);
        if (!at_end() && peek() != '\n' && peek() != '\r') return expected("the end of the rule");
        skip_blanks(true);
        return ok_status();
    }

    Result<std::string> alternatives(uint32_t depth) {
        if (depth > kGroupDepthMax) return bad(format("groups nested deeper than {}", kGroupDepthMax));
        std::string out;
        for (;;) {
            TRY_ASSIGN(std::string one, sequence(depth));
            out += one;
            if (peek() != '|') return out;
            ++at_;
            skip_blanks(true);
            out += " | ";
        }
    }

    Result<std::string> sequence(uint32_t depth) {
        std::string out;
        for (;;) {
            std::string item;
            const char c = peek();
            if (c == '"') {
                TRY_ASSIGN(item, literal());
            } else if (c == '[') {
                TRY_ASSIGN(item, character_class());
            } else if (c == '.') {
                ++at_;
                item = R"(/[\x{0}-\x{10FFFF}]/)";
            } else if (c == '(') {
                ++at_;
                skip_blanks(true);
                TRY_ASSIGN(std::string inner, alternatives(depth + 1));
                if (peek() != ')') return expected("\")\"");
                ++at_;
                item = "(" + inner + ")";
            } else if (is_name_char(c)) {
                TRY_ASSIGN(std::string used, name());
                item = rule_name(used);
            } else if (c == '<' || c == '!') {
                return bad("references to tokens are not done here");
            } else {
                return out.empty() ? std::string("\"\"") : out;
            }
            TRY_ASSIGN(std::string suffix, repetition());
            out += (out.empty() ? "" : " ") + item + suffix;
            skip_blanks(depth > 0);
        }
    }

    Result<uint32_t> number() {
        uint32_t value = 0;
        const char* begin = text_.data() + at_;
        auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
        if (end == begin) return expected("a number");
        if (error != std::errc() || value > kRepetitionsMax)
            return bad(format("more than {} repetitions", kRepetitionsMax));
        at_ += static_cast<size_t>(end - begin);
        return value;
    }

    Result<std::string> repetition() {
        const char c = peek();
        if (c == '*' || c == '+' || c == '?') {
            ++at_;
            return std::string(1, c);
        }
        if (c != '{') return std::string();
        ++at_;
        skip_blanks(false);
        constexpr uint32_t kUnbounded = 0xffffffffu;
        uint32_t least = 0, most = kUnbounded;
        if (peek() != ',') {
            TRY_ASSIGN(least, number());
            most = least;
        }
        skip_blanks(false);
        if (peek() == ',') {
            ++at_;
            skip_blanks(false);
            most = kUnbounded;
            if (peek() != '}') {
                TRY_ASSIGN(most, number());
            }
            skip_blanks(false);
        }
        if (peek() != '}') return expected("\"}\"");
        ++at_;
        if (most < least) return bad("more repetitions at least than at most");
        return most != kUnbounded ? format("{{{},{}}}", least, most) : format("{{{},}}", least);
    }

    // The code point of a character, or of an escape.
    Result<uint32_t> character() {
        if (at_end()) return expected("a character");
        const auto first = static_cast<uint8_t>(peek());
        if (first == '\\') return escape();
        const size_t n = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
        uint32_t code = n == 1 ? first : first & (0xffu >> (n + 1));
        for (size_t i = 1; i < n; ++i) code = code << 6 | (static_cast<uint8_t>(peek(i)) & 0x3f);
        at_ += n;
        return code;
    }

    Result<uint32_t> escape() {
        const char kind = peek(1);
        const size_t n_digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
        if (n_digits > 0) {
            uint32_t code = 0;
            const char* begin = text_.data() + std::min(at_ + 2, text_.size());
            const char* limit = text_.data() + std::min(at_ + 2 + n_digits, text_.size());
            auto [end, error] = std::from_chars(begin, limit, code, 16);
            if (error != std::errc() || end != begin + n_digits || code > kCodeMax || (code >= 0xd800 && code < 0xe000))
                return bad(format("expected {} hex digits of a character", n_digits));
            at_ += 2 + n_digits;
            return code;
        }
        constexpr std::string_view kKinds = "trn\\\"[]-^", kMeant = "\t\r\n\\\"[]-^";
        const size_t found = kind == '\0' ? std::string_view::npos : kKinds.find(kind);
        if (found == std::string_view::npos) return bad("an escape that grammars do not have");
        at_ += 2;
        return uint32_t{static_cast<uint8_t>(kMeant[found])};
    }

    static std::string code_text(uint32_t code) { return format("\\x{{{:X}}}", code); }

    // One terminal for each character.
    Result<std::string> literal() {
        std::string out;
        size_t n_characters = 0;
        for (++at_; peek() != '"';) {
            if (at_end()) return expected("the end of the text in quotes");
            TRY_ASSIGN(uint32_t code, character());
            out += (out.empty() ? "" : " ") + format("/[{}]/", code_text(code));
            ++n_characters;
        }
        ++at_;
        if (n_characters == 0) return std::string("\"\"");
        return n_characters == 1 ? out : "(" + out + ")";
    }

    Result<std::string> character_class() {
        ++at_;
        std::string out = "/[";
        if (peek() == '^') {
            out += '^';
            ++at_;
        }
        bool is_empty = true;
        while (peek() != ']') {
            if (at_end()) return expected("the end of the characters in brackets");
            TRY_ASSIGN(uint32_t first, character());
            uint32_t last = first;
            if (peek() == '-' && peek(1) != ']') {
                ++at_;
                TRY_ASSIGN(last, character());
            }
            if (last < first) return bad("a range that ends before it begins");
            out += code_text(first) + (last != first ? "-" + code_text(last) : "");
            is_empty = false;
        }
        ++at_;
        if (is_empty) return bad("no characters in brackets");
        return out + "]/";
    }

    std::string_view text_;
    size_t at_ = 0;
    std::map<std::string, Rule> rules_;
};

}  // namespace

bool looks_like_gbnf(std::string_view text) { return text.find("::=") != std::string_view::npos; }

Result<std::string> gbnf_to_lark(std::string_view text) { return Converter(text).convert(); }

}  // namespace lorad::proto
