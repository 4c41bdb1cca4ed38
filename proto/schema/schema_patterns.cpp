#include "proto/schema/schema_patterns.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "proto/base/format.h"
#include "proto/schema/schema_rewrite.h"

namespace lorad::proto {
namespace {

constexpr uint32_t kLastCodePoint = 0x10ffff;

struct CharRange {
    uint32_t first, last;
};
using CharSet = std::vector<CharRange>;  // in any order

CharSet complement_of(CharSet set) {
    std::ranges::sort(set, {}, &CharRange::first);
    CharSet out;
    uint32_t next = 0;
    for (const CharRange& range : set) {
        if (range.first > next) out.push_back({next, range.first - 1});
        next = std::max(next, range.last + 1);
    }
    if (next <= kLastCodePoint) out.push_back({next, kLastCodePoint});
    return out;
}

bool do_meet(const CharSet& a, const CharSet& b) {
    return std::ranges::any_of(a, [&](const CharRange& x) {
        return std::ranges::any_of(b, [&](const CharRange& y) { return x.first <= y.last && y.first <= x.last; });
    });
}

CharSet digits() { return {{'0', '9'}}; }
CharSet word_characters() { return {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}, {'_', '_'}}; }
CharSet blanks() {
    return {{'\t', '\r'},     {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
            {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
}
CharSet line_ends() { return {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}; }

// An automaton whose states have one way on by a character, or up to two without one.
struct Automaton {
    struct State {
        CharSet set;  // empty: the ways on take no character
        uint32_t next = kNowhere, other = kNowhere;
    };
    static constexpr uint32_t kNowhere = UINT32_MAX;
    std::vector<State> states;
    uint32_t start = 0, end = 0;
};

// Reads an expression into an automaton; nothing where it holds what is not read here.
class PatternReader {
  public:
    static std::optional<Automaton> read(std::string_view pattern) {
        PatternReader reader(pattern);
        const uint32_t begin = reader.add({}), end = reader.add({});
        // Alternatives, each with anchors of its own.
        do {
            const bool is_at_start = reader.take('^');
            std::optional<Part> part = reader.sequence(true);
            if (!part) return std::nullopt;
            if (!is_at_start) part = reader.joined(reader.any_text(), *part);
            if (!reader.take('$')) part = reader.joined(*part, reader.any_text());
            reader.alternative(begin, part->begin);
            reader.automaton_.states[part->end].next = end;
        } while (reader.take('|'));
        if (!reader.rest_.empty() || reader.is_too_large()) return std::nullopt;
        reader.automaton_.start = begin;
        reader.automaton_.end = end;
        return std::move(reader.automaton_);
    }

  private:
    struct Part {
        uint32_t begin, end;  // the end has no way on
    };
    static constexpr size_t kStatesMax = 2000;
    static constexpr int kDepthMax = 32;

    explicit PatternReader(std::string_view pattern) : rest_(pattern) {}

    uint32_t add(Automaton::State state) {
        automaton_.states.push_back(std::move(state));
        return static_cast<uint32_t>(automaton_.states.size() - 1);
    }
    bool is_too_large() const { return automaton_.states.size() > kStatesMax; }
    bool take(char byte) {
        if (!rest_.starts_with(byte)) return false;
        rest_.remove_prefix(1);
        return true;
    }
    Part nothing() {
        const uint32_t state = add({});
        return {state, state};
    }
    Part one_of(CharSet set) {
        const uint32_t end = add({});
        return {add({std::move(set), end, Automaton::kNowhere}), end};
    }
    Part joined(Part a, Part b) {
        automaton_.states[a.end].next = b.begin;
        return {a.begin, b.end};
    }
    Part repeated(Part part) {
        const uint32_t end = add({}), begin = add({{}, part.begin, end});
        automaton_.states[part.end].next = begin;
        return {begin, end};
    }
    Part any_text() { return repeated(one_of({{0, kLastCodePoint}})); }
    // One more way on from a state; more than two take states between.
    void alternative(uint32_t from, uint32_t to) {
        while (automaton_.states[from].next != Automaton::kNowhere) {
            if (automaton_.states[from].other == Automaton::kNowhere) {
                const uint32_t between = add({});
                automaton_.states[from].other = between;
            }
            from = automaton_.states[from].other;
        }
        automaton_.states[from].next = to;
    }

    std::optional<Part> sequence(bool is_top) {
        Part whole = nothing();
        while (!rest_.empty() && rest_.front() != '|' && rest_.front() != ')') {
            if (rest_.front() == '$' && is_top) break;
            const std::string_view text = rest_;
            std::optional<Part> one = single();
            if (!one) return std::nullopt;
            const std::string_view written = text.substr(0, text.size() - rest_.size());
            one = quantified(*one, written);
            if (!one || is_too_large()) return std::nullopt;
            whole = joined(whole, *one);
        }
        return whole;
    }

    std::optional<Part> single() {
        const char byte = rest_.front();
        if (byte == '(') return group();
        if (byte == '[') {
            rest_.remove_prefix(1);
            std::optional<CharSet> set = char_class();
            return set && !set->empty() ? std::optional(one_of(std::move(*set))) : std::nullopt;
        }
        if (byte == '.') {
            rest_.remove_prefix(1);
            return one_of(complement_of(line_ends()));
        }
        if (std::string_view("^$*+?{}]").find(byte) != std::string_view::npos) return std::nullopt;
        std::optional<CharSet> set = character();
        return set ? std::optional(one_of(std::move(*set))) : std::nullopt;
    }

    std::optional<Part> group() {
        rest_.remove_prefix(1);
        if (rest_.starts_with("?:")) rest_.remove_prefix(2);
        if (rest_.starts_with("?") || ++depth_ > kDepthMax) return std::nullopt;
        const uint32_t begin = add({}), end = add({});
        do {
            const std::optional<Part> part = sequence(false);
            if (!part) return std::nullopt;
            alternative(begin, part->begin);
            automaton_.states[part->end].next = end;
        } while (take('|'));
        --depth_;
        return take(')') ? std::optional(Part{begin, end}) : std::nullopt;
    }

    // The same text once more.
    std::optional<Part> again(std::string_view written) {
        const std::string_view behind = std::exchange(rest_, written);
        std::optional<Part> part = single();
        rest_ = behind;
        return part;
    }

    std::optional<Part> quantified(Part one, std::string_view written) {
        uint32_t least = 1, most = 1;
        bool is_bounded = true;
        if (take('*')) {
            least = 0, is_bounded = false;
        } else if (take('+')) {
            is_bounded = false;
        } else if (take('?')) {
            least = 0;
        } else if (take('{')) {
            const std::optional<uint32_t> n = number();
            if (!n) return std::nullopt;
            least = most = *n;
            if (take(',')) {
                is_bounded = !rest_.starts_with('}');
                const std::optional<uint32_t> last = is_bounded ? number() : n;
                if (!last || *last < least) return std::nullopt;
                most = *last;
            }
            if (!take('}')) return std::nullopt;
        } else {
            return one;
        }
        take('?');  // greedy or not, the same texts match
        if (rest_.starts_with('*') || rest_.starts_with('+') || rest_.starts_with('{')) return std::nullopt;
        Part whole = nothing();
        bool is_used = false;
        const auto next = [&]() -> std::optional<Part> {
            return std::exchange(is_used, true) ? again(written) : std::optional(one);
        };
        for (uint32_t i = 0; i < least; ++i) {
            const std::optional<Part> part = next();
            if (!part || is_too_large()) return std::nullopt;
            whole = joined(whole, *part);
        }
        if (!is_bounded) {
            const std::optional<Part> part = next();
            return part ? std::optional(joined(whole, repeated(*part))) : std::nullopt;
        }
        const uint32_t end = add({});
        for (uint32_t i = least; i < most; ++i) {
            const std::optional<Part> part = next();
            if (!part || is_too_large()) return std::nullopt;
            const uint32_t choice = add({{}, part->begin, end});
            whole = joined(whole, {choice, part->end});
        }
        return joined(whole, {end, end});
    }

    std::optional<uint32_t> number() {
        uint32_t n = 0;
        size_t n_digits = 0;
        for (; n_digits < rest_.size() && n_digits < 5 && rest_[n_digits] >= '0' && rest_[n_digits] <= '9'; ++n_digits)
            n = n * 10 + static_cast<uint32_t>(rest_[n_digits] - '0');
        rest_.remove_prefix(n_digits);
        return n_digits == 0 || n_digits == 5 ? std::nullopt : std::optional(n);
    }

    // A character or what an escape stands for.
    std::optional<CharSet> character() {
        if (!take('\\')) {
            const std::optional<uint32_t> point = code_point();
            return point ? std::optional(CharSet{{*point, *point}}) : std::nullopt;
        }
        if (rest_.empty()) return std::nullopt;
        const char byte = rest_.front();
        rest_.remove_prefix(1);
        const auto single_of = [](uint32_t point) { return CharSet{{point, point}}; };
        switch (byte) {
            case 'd': return digits();
            case 'D': return complement_of(digits());
            case 'w': return word_characters();
            case 'W': return complement_of(word_characters());
            case 's': return blanks();
            case 'S': return complement_of(blanks());
            case 't': return single_of('\t');
            case 'n': return single_of('\n');
            case 'r': return single_of('\r');
            case 'f': return single_of('\f');
            case 'v': return single_of('\v');
            case 'x':
            case 'u': {
                const std::optional<uint32_t> point = hexadecimal(byte == 'x' ? 2 : 4);
                return point ? std::optional(single_of(*point)) : std::nullopt;
            }
            default: {
                const bool is_word =
                    (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
                if (is_word || static_cast<uint8_t>(byte) >= 0x80) return std::nullopt;
                return single_of(static_cast<uint8_t>(byte));
            }
        }
    }

    std::optional<uint32_t> hexadecimal(size_t n_digits) {
        uint32_t point = 0;
        if (rest_.size() < n_digits) return std::nullopt;
        for (const char byte : rest_.substr(0, n_digits)) {
            const size_t digit = std::string_view("0123456789abcdef")
                                     .find(static_cast<char>(byte >= 'A' && byte <= 'F' ? byte - 'A' + 'a' : byte));
            if (digit == std::string_view::npos) return std::nullopt;
            point = point * 16 + static_cast<uint32_t>(digit);
        }
        rest_.remove_prefix(n_digits);
        if (point >= 0xd800 && point <= 0xdfff) return std::nullopt;  // half of a character
        return point;
    }

    // The text is valid UTF-8.
    std::optional<uint32_t> code_point() {
        if (rest_.empty()) return std::nullopt;
        const auto lead = static_cast<uint8_t>(rest_.front());
        const size_t n = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
        if (rest_.size() < n) return std::nullopt;
        uint32_t point = n == 1 ? lead : lead & (0x7fu >> n);
        for (const char byte : rest_.substr(1, n - 1)) point = point << 6 | (static_cast<uint8_t>(byte) & 0x3fu);
        rest_.remove_prefix(n);
        return point;
    }

    std::optional<CharSet> char_class() {
        const bool is_negated = take('^');
        CharSet set;
        while (!rest_.empty() && rest_.front() != ']') {
            // Other dialects have classes within classes, and operators.
            if (rest_.front() == '[' || rest_.starts_with("&&") || rest_.starts_with("--") || rest_.starts_with("~~"))
                return std::nullopt;
            const std::optional<CharSet> first = character();
            if (!first) return std::nullopt;
            const bool is_range = rest_.size() > 1 && rest_.front() == '-' && rest_[1] != ']';
            if (!is_range) {
                set.insert(set.end(), first->begin(), first->end());
                continue;
            }
            rest_.remove_prefix(1);
            const std::optional<CharSet> last = character();
            const auto is_single = [](const CharSet& one) { return one.size() == 1 && one[0].first == one[0].last; };
            if (!last || !is_single(*first) || !is_single(*last) || (*last)[0].first < (*first)[0].first)
                return std::nullopt;
            set.push_back({(*first)[0].first, (*last)[0].first});
        }
        if (!take(']') || set.empty()) return std::nullopt;
        return is_negated ? complement_of(std::move(set)) : set;
    }

    std::string_view rest_;
    int depth_ = 0;
    Automaton automaton_;
};

}  // namespace

PatternOverlap pattern_overlap(std::string_view a, std::string_view b, size_t& steps_left) {
    if (steps_left == 0) return PatternOverlap::kUnknown;
    const std::optional<Automaton> one = PatternReader::read(a), other = PatternReader::read(b);
    // Reading is work, too.
    steps_left -=
        std::min(steps_left, a.size() + b.size() + (one ? one->states.size() : 0) + (other ? other->states.size() : 0));
    if (!one || !other) return PatternOverlap::kUnknown;
    // Pairs of states that some text leads to.
    std::set<std::pair<uint32_t, uint32_t>> seen;
    std::vector<std::pair<uint32_t, uint32_t>> open;
    const auto reach = [&](uint32_t x, uint32_t y) {
        if (x != Automaton::kNowhere && y != Automaton::kNowhere && seen.emplace(x, y).second) open.emplace_back(x, y);
    };
    reach(one->start, other->start);
    while (!open.empty()) {
        if (steps_left == 0) return PatternOverlap::kUnknown;
        --steps_left;
        const auto [x, y] = open.back();
        open.pop_back();
        if (x == one->end && y == other->end) return PatternOverlap::kSome;
        const Automaton::State &in_one = one->states[x], &in_other = other->states[y];
        if (in_one.set.empty()) {
            reach(in_one.next, y);
            reach(in_one.other, y);
        }
        if (in_other.set.empty()) {
            reach(x, in_other.next);
            reach(x, in_other.other);
        }
        if (!in_one.set.empty() && !in_other.set.empty() && do_meet(in_one.set, in_other.set))
            reach(in_one.next, in_other.next);
    }
    return PatternOverlap::kNone;
}

ChosenPatterns choose_patterns(std::span<const JsonMember> properties, size_t& steps_left) {
    ChosenPatterns chosen;
    for (const JsonMember& property : properties) {
        if (is_beyond_grammars(property.key)) {
            chosen.lost.push_back(property.value);
            continue;
        }
        const auto meets = [&](const PatternProperty& one) {
            return pattern_overlap(one.pattern, property.key, steps_left) == PatternOverlap::kSome;
        };
        const auto first = std::ranges::find_if(chosen.kept, meets);
        if (first == chosen.kept.end())
            chosen.kept.push_back({std::string(property.key), property.value});
        else if (first->schema.dump() == property.value.dump() && std::none_of(first + 1, chosen.kept.end(), meets))
            first->pattern += format("|{}", property.key);
        else
            chosen.lost.push_back(property.value);
    }
    return chosen;
}

}  // namespace lorad::proto
