// Grammars as clients send them, built from the bytes so that most are whole: schemas that refer to each other, rules
// and terminals, expressions. Compiled and followed as tests/fuzz/grammar_run.h says.
#include <cstdint>
#include <string>

#include "proto/base/format.h"
#include "proto/schema/gbnf.h"
#include "tests/fuzz/grammar_run.h"

namespace {

using namespace lorad;

class Input {
  public:
    Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
    uint32_t below(uint32_t n) {
        if (size_ == 0) return 0;
        --size_;
        return *data_++ % n;
    }
    bool ended() const { return size_ == 0; }
    std::string rest() { return {reinterpret_cast<const char*>(data_), size_}; }

  private:
    const uint8_t* data_;
    size_t size_;
};

// A few of everything, from bytes; deeper only while there are bytes.
std::string schema(Input& in, uint32_t depth) {
    if (in.ended() || depth > 12) return R"({"type":"string"})";
    auto inner = [&] { return schema(in, depth + 1); };
    const uint32_t n = in.below(40);
    switch (in.below(16)) {
        case 0: return format(R"({{"$ref":"#/$defs/d{}"}})", n);
        case 1: return format(R"({{"type":"array","items":{},"minItems":{},"maxItems":{}}})", inner(), n / 4, n * 3);
        case 2:
            return format(R"({{"type":"object","properties":{{"a{}":{},"b":{}}},"required":["b"]}})", n, inner(),
                          inner());
        case 3: return format(R"({{"anyOf":[{},{}]}})", inner(), inner());
        case 4: return format(R"({{"allOf":[{},{}]}})", inner(), inner());
        case 5: return format(R"({{"oneOf":[{},{}]}})", inner(), inner());
        case 6: return format(R"({{"type":"string","pattern":"a.{{{}}}b|[a-c]*{}"}})", n, "x");
        case 7: return format(R"({{"type":"string","minLength":{},"maxLength":{}}})", n, n * n);
        case 8: return format(R"({{"type":"integer","minimum":{},"maximum":1{:0>{}}}})", n, 0, n % 20 + 1);
        case 9: return format(R"({{"type":"number","exclusiveMinimum":{}.5,"multipleOf":0.{}}})", n, n + 1);
        case 10:
            return format(R"({{"prefixItems":[{},{}],"items":{}}})", inner(), inner(), n % 2 == 0 ? "false" : "{}");
        case 11:
            return format(R"({{"patternProperties":{{"^a{{0,{}}}":{}}},"additionalProperties":{}}})", n, inner(),
                          inner());
        case 12: return format(R"({{"enum":[{},"x\u00e9",null,[1,{{"a":{}}}]]}})", n, n);
        case 13: return format(R"({{"const":{}}})", n);
        case 14: {
            constexpr const char* kFormats[] = {"date-time", "email", "uuid",     "hostname",
                                                "ipv6",      "uri",   "password", "time"};
            return format(R"({{"type":"string","format":"{}"}})", kFormats[n % 8]);
        }
        default: return n % 3 == 0 ? "true" : n % 3 == 1 ? "{}" : "false";
    }
}

std::string json_schema(Input& in) {
    const uint32_t n_defs = in.below(40);
    std::string defs;
    for (uint32_t i = 0; i < n_defs; ++i) defs += format(R"({}"d{}":{})", i == 0 ? "" : ",", i, schema(in, 0));
    return format(R"({{"$defs":{{{}}},"anyOf":[{}]}})", defs, schema(in, 0));
}

std::string body(Input& in, bool is_gbnf, uint32_t depth) {
    if (in.ended() || depth > 8) return R"("a")";
    auto inner = [&] { return body(in, is_gbnf, depth + 1); };
    const uint32_t n = in.below(30);
    switch (in.below(9)) {
        case 0: return format("r{}", n);
        case 1: return inner() + " " + inner();
        case 2: return format("({} | {})", inner(), inner());
        case 3: return format("({}){}", inner(), "?*+"[n % 3]);
        case 4: return format("({}){{{},{}}}", inner(), n / 4, n);
        case 5: return is_gbnf ? "[a-z\\n]" : format("T{}", n);
        case 6: return is_gbnf ? "[^a]" : format("/[a-f]{{0,{}}}x?/", n);
        case 7: return is_gbnf ? "." : format("%json {}", schema(in, 6));
        default: return "\"ab\"";
    }
}

std::string rules(Input& in, bool is_gbnf) {
    std::string out = is_gbnf ? "root ::= r0\n" : "start: r0\n";
    for (uint32_t i = 0; i < 30; ++i) out += format("r{} {} {}\n", i, is_gbnf ? "::=" : ":", body(in, is_gbnf, 0));
    if (is_gbnf) return out;
    for (uint32_t i = 0; i < 30; ++i) {
        const uint32_t n = in.below(30);
        out += n % 3 == 0   ? format("T{}: T{} | \"b\"\n", i, n)
               : n % 3 == 1 ? format("T{}: /[ab]*a[ab]{{{}}}/ & ~/b*/\n", i, n)
                            : format("T{}: \"a\"\n", i);
    }
    return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Input in(data, size);
    const uint32_t form = in.below(6);
    fuzz::on_big_stack([&] {
        if (form == 0) return fuzz::compile_grammar(model::GrammarKind::kRegex, in.rest());
        if (form == 1) return fuzz::compile_grammar(model::GrammarKind::kLark, in.rest());
        if (form == 2 || form == 3) return fuzz::compile_grammar(model::GrammarKind::kJsonSchema, json_schema(in));
        if (form == 4) return fuzz::compile_grammar(model::GrammarKind::kLark, rules(in, false));
        const Result<std::string> lark = proto::gbnf_to_lark(rules(in, true));
        if (lark.ok()) fuzz::compile_grammar(model::GrammarKind::kLark, *lark);
    });
    return 0;
}
