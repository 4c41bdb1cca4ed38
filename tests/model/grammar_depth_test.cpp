// Grammars as deep as they may be are read, compiled, followed and let go on a small part of the stack that the program
// has for them (proto/base/thread.h); deeper ones are refused whatever the form of the chain.
#include <functional>
#include <thread>

#include "model/output/logits.h"
#include "proto/base/format.h"
#include "proto/base/thread.h"
#include "tests/model/text_goldens.h"

namespace lorad::model::grammar_depth_test {
namespace {

// In helpers half of kBigStackBytes is enough for what is done here with all of it; this is a quarter of that half.
constexpr size_t kStackBytes = kBigStackBytes / 8;
constexpr size_t kLevelsMax = 1000;  // model/text/src/depth.rs

struct Form {
    const char* name;
    GrammarKind kind;
    size_t levels;  // for each link
    std::function<std::string(size_t n_links)> make;
};

std::string schema_chain(size_t n, const std::string& link) {
    std::string out = R"({"$ref":"#/$defs/d0","$defs":{)";
    for (size_t i = 0; i < n; ++i) {
        std::string one = link;
        one.replace(one.find("NEXT"), 4, format(R"({{"$ref":"#/$defs/d{}"}})", i + 1));
        out += format(R"("d{}":{},)", i, one);
    }
    return out + format(R"("d{}":{{"type":"string"}}}}}})", n);
}

std::string rule_chain(size_t n, const std::string& head, const std::string& link, const std::string& last) {
    std::string out = head;
    for (size_t i = 0; i < n; ++i) {
        std::string one = link;
        for (const auto& [mark, index] : {std::pair{std::string("OWN"), i}, {std::string("NEXT"), i + 1}}) {
            for (size_t at = one.find(mark); at != std::string::npos; at = one.find(mark, at))
                one.replace(at, mark.size(), std::to_string(index));
        }
        out += one + "\n";
    }
    return out + format(fmt::runtime(last), n);
}

const std::vector<Form>& forms() {
    static const std::vector<Form> all = [] {
        std::vector<Form> out;
        auto schema = [&](const char* name, size_t levels, std::string link) {
            out.push_back({name, GrammarKind::kJsonSchema, levels, [link](size_t n) { return schema_chain(n, link); }});
        };
        schema("refs", 2, "NEXT");
        schema("items", 4, R"({"type":"array","items":NEXT})");
        schema("properties", 5, R"({"type":"object","properties":{"a":NEXT},"required":["a"]})");
        schema("any", 4, R"({"anyOf":[NEXT,{"type":"null"}]})");
        schema("all", 4, R"({"allOf":[NEXT,{"type":"string"}]})");
        schema("all of one", 4, R"({"allOf":[NEXT]})");
        schema("prefix", 4, R"({"type":"array","prefixItems":[NEXT]})");
        schema("additional", 4, R"({"type":"object","additionalProperties":NEXT})");
        schema("typed", 3, R"({"type":"string","allOf":[NEXT]})");
        auto lark = [&](const char* name, size_t levels, const char* head, const char* link, const char* last) {
            out.push_back(
                {name, GrammarKind::kLark, levels, [=](size_t n) { return rule_chain(n, head, link, last); }});
        };
        lark("rules", 1, "start: r0\n", "rOWN: rNEXT", "r{}: \"a\"");
        lark("rules that may be left out", 1, "start: r0\n", "rOWN: \"x\" rNEXT?", "r{}: \"a\"");
        lark("alternatives", 1, "start: r0\n", "?rOWN: rNEXT | rNEXT", "r{}: \"a\"");
        lark("groups", 2, "start: r0\n", "rOWN: (rNEXT \"b\")*", "r{}: \"a\"");
        lark("terminals", 1, "start: T0\n", "TOWN: TNEXT", "T{}: \"a\"");
        lark("terminals beside others", 1, "start: T0\n", "TOWN: \"x\" TNEXT", "T{}: \"a\"");
        lark("terminals in groups", 2, "start: T0\n", "TOWN: (\"x\" | TNEXT)?", "T{}: \"a\"");
        return out;
    }();
    return all;
}

class Depth : public ::testing::TestWithParam<Form> {};
INSTANTIATE_TEST_SUITE_P(Forms, Depth, ::testing::ValuesIn(forms()), [](const auto& param) {
    std::string name = param.param.name;
    for (char& c : name) c = c == ' ' ? '_' : c;
    return name;
});

TEST_P(Depth, TheDeepestTakesASmallPartOfTheStack) {
    const auto tokenizer = golden_tokenizer("qwen2");
    ASSERT_TRUE(tokenizer);
    const TokenId eos = *tokenizer->token_id("<|im_end|>");
    const uint32_t vocab_size = tokenizer->vocab_size();
    const Form& form = GetParam();
    // As many links as are not refused for their depth.
    const std::string source = form.make((kLevelsMax - 10) / form.levels);
    Status done = make_error(ErrorCode::kInternal, "did not run");
    std::thread thread;
    ASSERT_TRUE(start_thread(
        thread,
        [&] {
            auto grammar = Grammar::create(*tokenizer, form.kind, source, std::vector<TokenId>{eos}, vocab_size);
            done = grammar.ok() ? ok_status() : Status(grammar.error());
            if (!grammar.ok()) return;
            std::vector<uint32_t> words(mask_words(vocab_size), 0);
            for (int step = 0; step < 20 && (*grammar)->mask(words).ok(); ++step) {
                TokenId next = 0;
                while (next < TokenId(vocab_size) && (words[size_t(next) / 32] >> (next % 32) & 1) == 0) ++next;
                if (next == TokenId(vocab_size) || next == eos || !(*grammar)->commit(next).ok()) break;
            }
            (void)(*grammar)->duplicate();
        },
        kStackBytes));
    thread.join();
    // The compiler may have other reasons against it, but depth is none.
    EXPECT_TRUE(done.ok() || done.error().message.find("levels") == std::string::npos) << done.error().message;
    RecordProperty("compiled", done.ok() ? 1 : 0);
}

TEST_P(Depth, WhatIsDeeperIsRefused) {
    const auto tokenizer = golden_tokenizer("qwen2");
    ASSERT_TRUE(tokenizer);
    const std::string source = GetParam().make(kLevelsMax * 4);
    auto grammar =
        Grammar::create(*tokenizer, GetParam().kind, source, std::vector<TokenId>{1}, tokenizer->vocab_size());
    ASSERT_FALSE(grammar.ok());
    EXPECT_EQ(grammar.error().code, ErrorCode::kInputTooComplex) << grammar.error().message;
    EXPECT_NE(grammar.error().message.find("levels deep, at most 1000"), std::string::npos) << grammar.error().message;
}

}  // namespace
}  // namespace lorad::model::grammar_depth_test
