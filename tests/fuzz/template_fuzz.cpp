// A chat template as any model or adapter may bring it, rendered with a small conversation: refused, or a text within
// bounds, within bounds of time and memory. Bytes are the template itself, which is changed by its parts
// (tests/fuzz/template_mutator.h), or choices of a grammar of templates: what parses goes deeper.
#include <cstdint>
#include <cstring>
#include <ctime>
#include <span>
#include <string>
#include <string_view>

#include <sys/resource.h>

#include "model/text/text.h"
#include "proto/base/check.h"
#include "tests/fuzz/template_mutator.h"

namespace {

// Makes a template of choices; at the end of them each choice is the first one, which is always short.
class Writer {
  public:
    explicit Writer(std::span<const uint8_t> choices) : choices_(choices) {}

    std::string written() {
        out_ += "{% set ns = namespace(a=[], b={}, c='x') %}{% macro m(a, b=1) %}{{ a }}{{ caller(b) if caller }}{% "
                "endmacro %}";
        while (!choices_.empty() && out_.size() < kBytesMax) statement(0);
        return std::move(out_);
    }

  private:
    static constexpr size_t kBytesMax = 20000;
    static constexpr int kDepthMax = 6;

    uint8_t next(size_t n) {
        if (choices_.empty()) return 0;
        const uint8_t byte = choices_[0];
        choices_ = choices_.subspan(1);
        return static_cast<uint8_t>(byte % n);
    }

    template <size_t N>
    std::string_view one_of(const std::string_view (&words)[N]) {
        return words[next(N)];
    }

    void body(int depth) {
        const int n = next(4);
        for (int i = 0; i <= n && out_.size() < kBytesMax; ++i) statement(depth + 1);
    }

    void statement(int depth) {
        switch (depth > kDepthMax ? 0 : next(13)) {
            case 0:
            case 1:
                out_ += "{{ ";
                expression(depth);
                out_ += " }}";
                return;
            case 2: return block(depth, "{% for x in ", next(4) == 0 ? " recursive %}" : " %}", "{% endfor %}");
            case 3:
                return block(depth, "{% if ", " %}",
                             next(2) == 0 ? "{% else %}y{% endif %}" : "{% elif ns.a %}z{% endif %}");
            case 4:
            case 5:
                return block(
                    depth,
                    one_of({"{% set ns.a = ", "{% set ns.b = ", "{% set ns.c = ", "{% set v = ", "{% set ns.d = "}),
                    " %}", "", false);
            case 6: return block(depth, "{% with w = ", " %}", "{% endwith %}");
            case 7:
                out_ += "{% set v %}";
                body(depth);
                out_ += "{% endset %}";
                return;
            case 8: return block(depth, "{% call(y) m(", ") %}", "{{ y }}{% endcall %}");
            case 9: return block(depth, "{% macro f(n, a=", ") %}", "{{ f(a) if n }}{% set ns.c = f %}{% endmacro %}");
            case 10:
                out_ += "{% for i in range(" + std::to_string(next(40) == 1 ? 100000 : 1 << next(7)) + ") %}";
                body(depth);
                out_ += "{% endfor %}";
                return;
            case 11:
                out_ += "{% filter ";
                out_ += filter(depth);
                out_ += " %}";
                body(depth);
                out_ += "{% endfilter %}";
                return;
            default: out_ += std::string(size_t{1} << next(10), 'r');
        }
    }

    void block(int depth, std::string_view open, std::string_view middle, std::string_view close,
               bool has_body = true) {
        out_ += open;
        expression(depth + 1);
        out_ += middle;
        if (has_body) body(depth);
        out_ += close;
    }

    void expression(int depth) {
        if (depth > kDepthMax || out_.size() > kBytesMax) {
            out_ += value();
            return;
        }
        switch (next(12)) {
            case 0:
            case 1:
            case 2: out_ += value(); return;
            case 3:
            case 4:
            case 5:
                out_ += '(';
                expression(depth + 1);
                out_ += ')';
                out_ += filter_text(depth);
                return;
            case 6:
                out_ += '(';
                expression(depth + 1);
                out_ += one_of({" + ", " ~ ", " * ", " == ", " < ", " in ", " % ", " and ", " or ", " - ", " // ",
                                " ** ", " / ", " not in ", " >= "});
                expression(depth + 1);
                out_ += ')';
                return;
            case 7: return several(depth, '[', ']');
            case 8: return several(depth, '(', ')');
            case 9:
                out_ += '{';
                expression(depth + 1);
                out_ += ": ";
                expression(depth + 1);
                out_ += '}';
                return;
            case 10:
                out_ += '(';
                expression(depth + 1);
                out_ += ')';
                out_ += one_of({"[0]",
                                "[-1]",
                                "[1:]",
                                "[::-1]",
                                ".a",
                                ".b",
                                "['x']",
                                "[::2]",
                                "[99999999999:]",
                                ".grouper",
                                ".list",
                                ".items()",
                                ".keys()",
                                ".values()",
                                ".upper()",
                                ".split()",
                                ".next",
                                ".count",
                                ".__class__",
                                ".format(1, a=ns)",
                                ".join(ns.a)",
                                ".replace('a', ns.c)",
                                ".splitlines()",
                                ".ljust(99999999)",
                                ".zfill(1000)",
                                ".get(ns.a)",
                                ".strip(ns.c)",
                                ".expandtabs(1000)",
                                ".translate({97: 'b'})",
                                ".partition('a')",
                                ".title()",
                                ".index(1)",
                                ".copy()",
                                ".center(70000)",
                                ".startswith('a')"});
                return;
            default:
                out_ += "(not ";
                expression(depth + 1);
                out_ += one_of({")", " is defined)", " is in ns.a)", " is eq ns.b)", " is string)", " is lower)",
                                " is divisibleby 3)", " if ns.a else ns.b)"});
        }
    }

    void several(int depth, char open, char close) {
        out_ += open;
        const int n = next(4);
        for (int i = 0; i < n; ++i) {
            expression(depth + 1);
            out_ += ", ";
        }
        out_ += close;
    }

    std::string_view value() {
        return one_of({"ns.a",
                       "ns.b",
                       "ns.c",
                       "ns",
                       "v",
                       "x",
                       "w",
                       "i",
                       "loop",
                       "messages",
                       "tools",
                       "[]",
                       "{}",
                       "()",
                       "1",
                       "'ab c'",
                       "2.5",
                       "none",
                       "true",
                       "'a\\nb\\tc'",
                       "'é漢🙂'",
                       "range(9)",
                       "range(100000)",
                       "100000",
                       "99999999999999999999999999999",
                       "-1",
                       "'%s%60000d'",
                       "'{:>9999}{a}'",
                       "m(ns.a)",
                       "f(ns.b)",
                       "loop(ns.a)",
                       "loop.changed(ns.a)",
                       "loop.cycle(ns.a, 1)",
                       "cycler(ns.a, 1)",
                       "cycler(ns.b).next",
                       "namespace(a=ns.a)",
                       "dict(ns.b, a=ns.a)",
                       "dict(**ns.b)",
                       "joiner(ns.c)",
                       "joiner()()",
                       "('a' * 1000)",
                       "('ab ' * 300)",
                       "('a\n' * 1000000)",
                       "([1] * 1000)",
                       "raise_exception(ns.c)",
                       "strftime_now('%c' * 100)",
                       "caller",
                       "ns.f",
                       "self",
                       "1e308",
                       "'\\x00\\u202e'",
                       "varargs",
                       "kwargs"});
    }

    std::string filter_text(int depth) { return " | " + filter(depth); }

    std::string filter(int depth) {
        const std::string_view name =
            one_of({"string",    "list",  "tojson", "length",   "upper",  "lower",  "title",     "capitalize",
                    "trim",      "first", "last",   "reverse",  "sort",   "unique", "join",      "sum",
                    "min",       "max",   "items",  "dictsort", "escape", "safe",   "striptags", "urlencode",
                    "wordcount", "int",   "float",  "abs",      "round",  "select", "reject"});
        if (depth > kDepthMax || next(2) == 0) return std::string(name);
        return std::string(one_of({"join(ns.c)",           "map('upper')",
                                   "map('map', 'string')", "map(attribute='a')",
                                   "map(*ns.a)",           "groupby('a')",
                                   "groupby(0)",           "batch(3, ns.a)",
                                   "batch(99999999, 'x')", "slice(3)",
                                   "slice(999999)",        "indent(9999)",
                                   "indent(ns.c, true)",   "center(9999999)",
                                   "replace('a', ns.c)",   "replace('', 'xx')",
                                   "truncate(9)",          "tojson(indent=4)",
                                   "tojson(indent=ns.c)",  "default(ns.a)",
                                   "format(ns.a)",         "format(1, 2)",
                                   "selectattr('a')",      "rejectattr('a', 'eq', 1)",
                                   "select('in', ns.a)",   "sort(attribute='a,b')",
                                   "sort(reverse=true)",   "unique(attribute='a')",
                                   "sum(start=[])",        "sum(start=ns.a)",
                                   "min(attribute='a')",   "attr('items')",
                                   "attr(ns.c)",           "round(300)",
                                   "int(base=16)",         "join(attribute='a')"}));
    }

    std::span<const uint8_t> choices_;
    std::string out_;
};

constexpr uint8_t kChoicesMark = 0xff;  // begins choices, and no text

// Of this process so far, in KiB.
long resident_peak() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

}  // namespace

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

// Choices are bytes, and so is a template now and then; otherwise its parts are changed.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
    if ((size > 0 && data[0] == kChoicesMark) || seed % 5 == 0) return LLVMFuzzerMutate(data, size, max_size);
    const std::string text = lorad::fuzz::TemplateMutator(seed).mutated({reinterpret_cast<const char*>(data), size});
    if (text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
    std::memcpy(data, text.data(), text.size());
    return text.size();
}

extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* a, size_t a_size, const uint8_t* b, size_t b_size,
                                            uint8_t* out, size_t max_size, unsigned int seed) {
    const auto text_of = [](const uint8_t* data, size_t size) {
        return std::string_view(reinterpret_cast<const char*>(data), size);
    };
    const std::string text = lorad::fuzz::TemplateMutator(seed).crossed(text_of(a, a_size), text_of(b, b_size));
    if (text.size() > max_size) return 0;
    std::memcpy(out, text.data(), text.size());
    return text.size();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace lorad;
    const bool is_made = size > 0 && data[0] == kChoicesMark;
    const std::string source =
        is_made ? Writer({data + 1, size - 1}).written() : std::string(reinterpret_cast<const char*>(data), size);
    const auto made = model::ChatTemplate::from_source(source, R"({"bos_token":"<s>","eos_token":{"content":"</s>"}})");
    if (!made.ok()) {
        CHECK(!made.error().message.empty());
        return 0;
    }
    for (
        const char* input :
        {R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":{}}}]}],
                                  "tools":[{"type":"function","function":{"name":"f"}}],"add_generation_prompt":true})",
         R"({"messages":[]})"}) {
        const long peak_before = resident_peak();
        const std::clock_t begin = std::clock();
        const auto text = (*made)->render(input, 0);
        CHECK(text.ok() ? text->size() <= (size_t{64} << 20)
                        : !text.error().message.empty() && text.error().message.size() < 9000);
        CHECK(text.ok() || text.error().code != ErrorCode::kInternal);
        // a panic
        CHECK(text.ok() || text.error().message.find("nothing but this request is harmed") == std::string::npos);
        CHECK(std::clock() - begin < 8 * CLOCKS_PER_SEC);
        CHECK(resident_peak() - peak_before < 256 << 10);
    }
    return 0;
}
