// Changes chat templates by their parts: whole blocks are moved, doubled and put around others, and expressions get
// filters and operators, so that most mutants parse.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lorad::fuzz {

class TemplateMutator {
  public:
    explicit TemplateMutator(uint32_t seed) : random_(seed) {}

    std::string mutated(std::string_view source) {
        std::string out(source);
        for (uint32_t n = below(4) + 1; n > 0; --n)
            out = below(2) == 0 ? with_block_changed(out) : with_expression_changed(out);
        return out;
    }
    // A block of the other one somewhere in this one.
    std::string crossed(std::string_view source, std::string_view other) {
        const std::vector<Range> places = blocks(source), theirs = blocks(other);
        if (theirs.empty()) return std::string(source);
        const Range from = theirs[below(uint32_t(theirs.size()))];
        const size_t at = places.empty() ? 0 : places[below(uint32_t(places.size()))].begin;
        return std::string(source.substr(0, at)) + std::string(other.substr(from.begin, from.end - from.begin)) +
               std::string(source.substr(at));
    }

  private:
    struct Range {
        size_t begin, end;
    };

    uint32_t below(uint32_t n) { return uint32_t(random_() % n); }
    template <size_t N>
    std::string one_of(const std::string_view (&words)[N]) {
        return std::string(words[below(N)]);
    }

    // Tags, and blocks from the tag that opens them to the one that closes them.
    static std::vector<Range> blocks(std::string_view source) {
        constexpr size_t kBlocksMax = 2000;
        std::vector<Range> found;
        std::vector<size_t> open;
        for (size_t at = source.find('{');
             at != std::string_view::npos && at + 1 < source.size() && found.size() < kBlocksMax;
             at = source.find('{', at)) {
            const char kind = source[at + 1];
            const std::string_view close = kind == '{' ? "}}" : kind == '%' ? "%}" : kind == '#' ? "#}" : "";
            const size_t end = close.empty() ? std::string_view::npos : source.find(close, at + 2);
            if (end == std::string_view::npos) {
                ++at;
                continue;
            }
            const std::string_view inside = source.substr(at + 2, end - at - 2);
            const size_t word = std::min(inside.find_first_not_of("- +\t\n"), inside.size());
            const std::string_view keyword = inside.substr(word, 12);
            if (kind != '%') {
                found.push_back({at, end + 2});
            } else if (keyword.starts_with("end")) {
                if (!open.empty()) {
                    found.push_back({open.back(), end + 2});
                    open.pop_back();
                }
            } else if (keyword.starts_with("for") || keyword.starts_with("if") || keyword.starts_with("macro") ||
                       keyword.starts_with("filter") || keyword.starts_with("call") || keyword.starts_with("with") ||
                       (keyword.starts_with("set") && inside.find('=') == std::string_view::npos)) {
                open.push_back(at);
            } else if (!keyword.starts_with("el")) {
                found.push_back({at, end + 2});
            }
            at = end + 2;
        }
        return found;
    }

    std::string with_block_changed(const std::string& source) {
        const std::vector<Range> all = blocks(source);
        if (all.empty()) return source + "{{ " + value() + " }}";
        const Range one = all[below(uint32_t(all.size()))], other = all[below(uint32_t(all.size()))];
        const std::string before = source.substr(0, one.begin), text = source.substr(one.begin, one.end - one.begin),
                          behind = source.substr(one.end);
        switch (below(9)) {
            case 0: return before + behind;
            case 1: return before + text + text + behind;
            case 2: return before + source.substr(other.begin, other.end - other.begin) + behind;
            case 3:
                return before + "{% for " + one_of({"x", "i", "a, b", "message"}) + " in " + value() +
                       (below(4) == 0 ? " recursive" : "") + " %}" + text + "{% endfor %}" + behind;
            case 4:
                return before + "{% if " + value() + " %}" + text + "{% elif " + value() + " %}{% else %}{{ " +
                       value() + " }}{% endif %}" + behind;
            case 5:
                return before + "{% set " + one_of({"x", "v", "ns.a", "a, b"}) + " = " + value() + " %}" + text +
                       behind;
            case 6: return before + "{% set v %}" + text + "{% endset %}" + behind;
            case 7: return before + "{% filter " + filter() + " %}" + text + "{% endfilter %}" + behind;
            default:
                return before + "{% macro m(a, b=1) %}" + text + "{{ m(" + value() + ") if a }}{% endmacro %}{{ m(" +
                       value() + ") }}" + behind;
        }
    }

    // Names, numbers and texts within tags.
    static std::vector<Range> operands(std::string_view source) {
        constexpr size_t kOperandsMax = 2000;
        std::vector<Range> found;
        for (const Range& block : blocks(source)) {
            const std::string_view tag =
                source.substr(block.begin, std::min(block.end, source.find('}', block.begin)) - block.begin);
            const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
            for (size_t i = 2; i < tag.size() && found.size() < kOperandsMax;) {
                size_t end = i;
                if (tag[i] == '\'' || tag[i] == '"') {
                    end = std::min(tag.find(tag[i], i + 1), tag.size() - 1) + 1;
                } else {
                    while (end < tag.size() && is_word(tag[end])) ++end;
                }
                if (end > i) found.push_back({block.begin + i, block.begin + end});
                i = std::max(end, i + 1);
            }
        }
        return found;
    }

    std::string with_expression_changed(const std::string& source) {
        const std::vector<Range> all = operands(source);
        if (all.empty()) return source + "{{ " + value() + " | " + filter() + " }}";
        const Range one = all[below(uint32_t(all.size()))];
        const std::string before = source.substr(0, one.begin), text = source.substr(one.begin, one.end - one.begin),
                          behind = source.substr(one.end);
        switch (below(8)) {
            case 0: return before + value() + behind;
            case 1:
            case 2: return before + "(" + text + " | " + filter() + ")" + behind;
            case 3:
                return before + "(" + text +
                       one_of({" + ", " ~ ", " * ", " == ", " < ", " in ", " and ", " or ", " % ", " // ", " ** ",
                               " - "}) +
                       value() + ")" + behind;
            case 4:
                return before + text +
                       one_of({"[0]", "[::-1]", "[1:]", ".a", ".items()", ".split()", "['x']", ".strip()", ".upper()",
                               ".format(1)", ".get('a')", ".next", ".list"}) +
                       behind;
            case 5: return before + one_of({"[", "("}) + text + ", " + text + "]" + behind;
            case 6: return before + "{'a': " + text + ", 'b': " + value() + "}" + behind;
            default: return before + "(" + text + " if " + value() + " else " + value() + ")" + behind;
        }
    }

    std::string value() {
        return one_of({"messages",
                       "messages[0]",
                       "message",
                       "tools",
                       "x",
                       "v",
                       "i",
                       "ns.a",
                       "loop",
                       "loop.index",
                       "m",
                       "none",
                       "true",
                       "[]",
                       "{}",
                       "()",
                       "1",
                       "-1",
                       "'a'",
                       "'\\n'",
                       "2.5",
                       "range(9)",
                       "range(100000)",
                       "99999999999999999999",
                       "('a' * 1000)",
                       "([messages] * 100)",
                       "namespace(a=[])",
                       "dict(a=1)",
                       "cycler(1, 2)",
                       "joiner()",
                       "strftime_now('%d')",
                       "raise_exception('x')",
                       "add_generation_prompt"});
    }

    std::string filter() {
        return one_of({"string",
                       "list",
                       "tojson",
                       "length",
                       "upper",
                       "trim",
                       "first",
                       "last",
                       "reverse",
                       "sort",
                       "unique",
                       "join(', ')",
                       "sum",
                       "min",
                       "max",
                       "items",
                       "dictsort",
                       "escape",
                       "safe",
                       "map('string')",
                       "map(attribute='a')",
                       "groupby('role')",
                       "batch(3)",
                       "slice(3)",
                       "indent(9)",
                       "indent(99999)",
                       "center(9999)",
                       "replace('a', 'bb')",
                       "truncate(9)",
                       "tojson(indent=4)",
                       "default(1)",
                       "round",
                       "selectattr('role', 'equalto', 'user')",
                       "rejectattr('a')",
                       "select('string')",
                       "int",
                       "float",
                       "abs",
                       "wordcount",
                       "title",
                       "urlencode",
                       "format(1, 2)",
                       "attr('items')",
                       "pprint"});
    }

    std::minstd_rand random_;
};

}  // namespace lorad::fuzz
