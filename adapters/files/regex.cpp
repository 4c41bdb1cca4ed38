#include "adapters/files/regex.h"

#include <algorithm>
#include <optional>

#include "proto/base/format.h"

namespace lorad::adapters {

namespace {

using Instruction = Regex::Instruction;
using Op = Regex::Instruction::Op;
using Program = Regex::Program;
using ByteSet = Regex::ByteSet;

constexpr size_t kPatternBytesMax = 64 << 10;
constexpr size_t kInstructionsMax = 100'000;
constexpr uint32_t kDepthMax = 100;  // nested groups
constexpr uint32_t kRepeatMax = 1000;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

ByteSet byte_set(char c) { return ByteSet().set(static_cast<uint8_t>(c)); }

// The set behind \d, \w, \s and their opposites.
std::optional<ByteSet> class_escape(char c) {
    ByteSet set;
    switch (c | 0x20) {
        case 'd':
            for (char digit = '0'; digit <= '9'; ++digit) set.set(static_cast<uint8_t>(digit));
            break;
        case 'w':
            for (int byte = 0; byte < 256; ++byte)
                set.set(static_cast<size_t>(byte), Regex::is_word(static_cast<char>(byte)));
            break;
        case 's':
            for (char space : {' ', '\t', '\n', '\r', '\f', '\v'}) set.set(static_cast<uint8_t>(space));
            break;
        default: return std::nullopt;
    }
    return (c & 0x20) ? set : ~set;
}

Instruction jump(Op op, int64_t a, int64_t b = 0) {
    return {.op = op, .negated = false, .a = static_cast<int32_t>(a), .b = static_cast<int32_t>(b), .set = 0};
}

void append(Program& to, const Program& part) { to.insert(to.end(), part.begin(), part.end()); }

// Recursive descent; a program part is position independent, so parts are joined by appending.
class Compiler {
  public:
    Compiler(std::string_view pattern, std::vector<ByteSet>& sets) : pattern_(pattern), sets_(sets) {}

    Result<Program> compile() {
        TRY_ASSIGN(Program program, alternatives(0));
        if (!at_end()) return syntax("unbalanced parenthesis");
        program.push_back({});
        return program;
    }

  private:
    bool at_end() const { return at_ >= pattern_.size(); }
    char peek() const { return pattern_[at_]; }
    bool take(char c) {
        if (at_end() || peek() != c) return false;
        ++at_;
        return true;
    }
    bool take(std::string_view text) {
        if (!pattern_.substr(at_).starts_with(text)) return false;
        at_ += text.size();
        return true;
    }
    Error syntax(std::string_view what) const {
        return make_error(ErrorCode::kAdapterInvalid, format("not a regular expression: {} at position {}", what, at_));
    }
    Error unsupported(std::string_view what) const {
        return make_error(ErrorCode::kAdapterUnsupported,
                          format("regular expression with {} at position {}", what, at_));
    }

    Result<Program> alternatives(uint32_t depth) {
        if (depth > kDepthMax) return unsupported(format("more than {} nested groups", kDepthMax));
        TRY_ASSIGN(Program program, sequence(depth));
        while (take('|')) {
            TRY_ASSIGN(Program other, sequence(depth));
            Program joined;
            joined.push_back(jump(Op::kSplit, 1, static_cast<int64_t>(program.size()) + 2));
            append(joined, program);
            joined.push_back(jump(Op::kJump, static_cast<int64_t>(other.size()) + 1));
            append(joined, other);
            program = std::move(joined);
            if (program.size() > kInstructionsMax) return unsupported("too many parts");
        }
        return program;
    }

    Result<Program> sequence(uint32_t depth) {
        Program program;
        while (!at_end() && peek() != '|' && peek() != ')') {
            bool repeatable = true;
            TRY_ASSIGN(Program part, atom(depth, repeatable));
            TRY_ASSIGN(part, repeated(std::move(part), repeatable));
            append(program, part);
            if (program.size() > kInstructionsMax) return unsupported("too many parts");
        }
        return program;
    }

    // {m}, {m,}, {,n}, {m,n} at the current place; anything else in braces is literal text.
    std::optional<std::pair<uint32_t, std::optional<uint32_t>>> braces(bool& too_large) {
        size_t at = at_ + 1;
        const auto number = [&]() -> std::optional<uint32_t> {
            const size_t begin = at;
            uint32_t value = 0;
            while (at < pattern_.size() && is_digit(pattern_[at])) {
                value = std::min(value * 10 + static_cast<uint32_t>(pattern_[at++] - '0'), kRepeatMax + 1);
            }
            if (at == begin) return std::nullopt;
            return value;
        };
        const std::optional<uint32_t> low = number();
        std::optional<uint32_t> high = low;
        bool comma = false;
        if (at < pattern_.size() && pattern_[at] == ',') {
            ++at;
            comma = true;
            high = number();
        }
        if (at >= pattern_.size() || pattern_[at] != '}' || (!low && !high && !comma)) return std::nullopt;
        if (!low && !comma) return std::nullopt;
        at_ = at + 1;
        too_large = low.value_or(0) > kRepeatMax || high.value_or(0) > kRepeatMax;
        return std::pair(low.value_or(0), high);
    }

    Result<Program> repeated(Program part, bool repeatable) {
        if (at_end()) return part;
        uint32_t low = 0;
        std::optional<uint32_t> high;
        bool too_large = false;
        if (take('*')) {
        } else if (take('+')) {
            low = 1;
        } else if (take('?')) {
            high = 1;
        } else if (peek() == '{') {
            const auto range = braces(too_large);
            if (!range) return part;
            low = range->first;
            high = range->second;
        } else {
            return part;
        }
        if (!repeatable) return syntax("nothing to repeat");
        if (too_large) return unsupported(format("a repeat of more than {}", kRepeatMax));
        if (high && *high < low) return syntax("min repeat greater than max repeat");
        take('?');  // a lazy repeat matches the same texts
        if (!at_end() && peek() == '+') return unsupported("a possessive repeat");
        if (!at_end() && (peek() == '*' || peek() == '?')) return syntax("multiple repeat");
        if (!at_end() && peek() == '{') {
            const size_t before = at_;
            bool ignored = false;
            if (braces(ignored)) return syntax("multiple repeat");
            at_ = before;
        }

        const uint64_t copies = static_cast<uint64_t>(low) + (high ? *high - low : 1);
        if (copies * (part.size() + 2) > kInstructionsMax) return unsupported("too many parts");
        const auto size = static_cast<int64_t>(part.size());
        Program program;
        for (uint32_t i = 0; i < low; ++i) append(program, part);
        if (!high) {
            program.push_back(jump(Op::kSplit, 1, size + 2));
            append(program, part);
            program.push_back(jump(Op::kJump, -size - 1));
        } else {
            for (uint32_t i = low; i < *high; ++i) {
                program.push_back(jump(Op::kSplit, 1, size + 1));
                append(program, part);
            }
        }
        return program;
    }

    Program bytes(const ByteSet& set) {
        sets_.push_back(set);
        return {{.op = Op::kBytes, .negated = false, .a = 0, .b = 0, .set = static_cast<uint32_t>(sets_.size() - 1)}};
    }

    Result<Program> atom(uint32_t depth, bool& repeatable) {
        const char c = peek();
        if (c == '*' || c == '+' || c == '?') return syntax("nothing to repeat");
        if (c == '(') return group(depth, repeatable);
        if (c == '[') return bracket();
        if (c == '\\') return escape(repeatable);
        ++at_;
        if (c == '^' || c == '$') {
            repeatable = false;
            return Program{{.op = c == '^' ? Op::kTextBegin : Op::kTextEnd}};
        }
        if (c == '.') return bytes(~byte_set('\n'));
        return bytes(byte_set(c));
    }

    Result<Program> group(uint32_t depth, bool& repeatable) {
        ++at_;
        std::optional<Instruction> look;
        if (take("?:")) {
        } else if (take("?=") || take("?!")) {
            look = Instruction{.op = Op::kLookAhead, .negated = pattern_[at_ - 1] == '!'};
        } else if (take("?<=") || take("?<!")) {
            look = Instruction{.op = Op::kLookBehind, .negated = pattern_[at_ - 1] == '!'};
        } else if (take("?P<")) {
            const size_t begin = at_;
            while (!at_end() && Regex::is_word(peek())) ++at_;
            if (at_ == begin || !take('>')) return syntax("bad group name");
        } else if (take("?#")) {
            while (!at_end() && peek() != ')') ++at_;
            if (!take(')')) return syntax("missing ), unterminated comment");
            repeatable = false;
            return Program{};
        } else if (take("?P=") || take("?(")) {
            return unsupported("a back reference or condition");
        } else if (take("?>")) {
            return unsupported("an atomic group");
        } else if (take('?')) {
            if (!at_end() && std::string_view("aiLmsux-").find(peek()) != std::string_view::npos) {
                return unsupported("flags");
            }
            return syntax("unknown extension");
        }
        TRY_ASSIGN(Program inner, alternatives(depth + 1));
        if (!take(')')) return syntax("missing ), unterminated subpattern");
        if (!look) return inner;
        look->a = static_cast<int32_t>(inner.size()) + 2;
        Program program{*look};
        append(program, inner);
        program.push_back({});
        return program;
    }

    // After a backslash: a single byte, as \t, \x2e or \. are.
    Result<char> byte_escape() {
        const char c = pattern_[at_++];
        switch (c) {
            case 'n': return '\n';
            case 't': return '\t';
            case 'r': return '\r';
            case 'f': return '\f';
            case 'v': return '\v';
            case 'a': return '\a';
            case '0': return '\0';
            case 'x': {
                int value = 0;
                for (int i = 0; i < 2; ++i) {
                    const char digit = at_end() ? ' ' : pattern_[at_++];
                    const char lower = static_cast<char>(digit | 0x20);
                    if (!is_digit(digit) && !(lower >= 'a' && lower <= 'f')) return syntax("incomplete escape \\x");
                    value = value * 16 + (is_digit(digit) ? digit - '0' : lower - 'a' + 10);
                }
                return static_cast<char>(value);
            }
            case 'u':
            case 'U':
            case 'N': return unsupported("a character given by number or name");
            default: break;
        }
        if (is_digit(c)) return unsupported("a back reference");
        if (is_letter(c)) return syntax(format("bad escape \\{}", c));
        return c;
    }

    Result<Program> escape(bool& repeatable) {
        ++at_;
        if (at_end()) return syntax("bad escape (end of pattern)");
        const char c = peek();
        if (const auto set = class_escape(c); set && is_letter(c)) {
            ++at_;
            return bytes(*set);
        }
        if (c == 'A' || c == 'Z' || c == 'b' || c == 'B') {
            ++at_;
            repeatable = false;
            const Op op = c == 'A'   ? Op::kTextBegin
                          : c == 'Z' ? Op::kTextEnd
                          : c == 'b' ? Op::kWordBorder
                                     : Op::kNotWordBorder;
            return Program{{.op = op}};
        }
        TRY_ASSIGN(const char byte, byte_escape());
        return bytes(byte_set(byte));
    }

    Result<Program> bracket() {
        ++at_;
        const bool negated = take('^');
        ByteSet set;
        for (bool first = true;; first = false) {
            if (at_end()) return syntax("unterminated character set");
            if (peek() == ']' && !first) break;
            TRY_ASSIGN(const std::optional<char> low, bracket_item(set));
            if (!low || at_ + 1 >= pattern_.size() || peek() != '-' || pattern_[at_ + 1] == ']') {
                if (low) set.set(uint8_t(*low));
                continue;
            }
            ++at_;
            TRY_ASSIGN(const std::optional<char> high, bracket_item(set));
            if (!high || uint8_t(*high) < uint8_t(*low)) return syntax("bad character range");
            for (int byte = uint8_t(*low); byte <= uint8_t(*high); ++byte) set.set(static_cast<size_t>(byte));
        }
        ++at_;
        return bytes(negated ? ~set : set);
    }

    // A byte, or nothing after adding a class like \d to the set.
    Result<std::optional<char>> bracket_item(ByteSet& set) {
        const char c = pattern_[at_++];
        if (c != '\\') return std::optional<char>(c);
        if (at_end()) return syntax("unterminated character set");
        if (const auto escaped = class_escape(peek()); escaped && is_letter(peek())) {
            ++at_;
            set |= *escaped;
            return std::optional<char>();
        }
        if (take('b')) return std::optional<char>('\b');
        TRY_ASSIGN(const char byte, byte_escape());
        return std::optional<char>(byte);
    }

    std::string_view pattern_;
    std::vector<ByteSet>& sets_;
    size_t at_ = 0;
};

}  // namespace

// Bytes above 127 count as letters: nearly every character there is one for Python.
bool Regex::is_word(char c) { return is_digit(c) || is_letter(c) || c == '_' || static_cast<uint8_t>(c) >= 0x80; }

Result<Regex> Regex::compile(std::string_view pattern) {
    if (pattern.size() > kPatternBytesMax) {
        return make_error(ErrorCode::kAdapterUnsupported,
                          format("regular expression of {} bytes, at most {}", pattern.size(), kPatternBytesMax));
    }
    Regex regex;
    Compiler compiler(pattern, regex.sets_);
    TRY_ASSIGN(regex.program_, compiler.compile());
    return regex;
}

}  // namespace lorad::adapters
