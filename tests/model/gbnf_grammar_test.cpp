// Grammars of llama.cpp's form, converted and compiled: the texts they have, and no others.
#include "model/output/logits.h"
#include "proto/schema/gbnf.h"
#include "tests/model/text_goldens.h"

namespace lorad::model::gbnf_grammar_test {
namespace {

struct Case {
    const char* grammar;
    std::vector<std::string> texts, others;
};

const Case kCases[] = {
    // Terminals that a lexer which takes the longest one would run past.
    {"root ::= [a-z]* \"end\"", {"end", "xend", "endend", "enend"}, {"", "en", "endx", "xEnd"}},
    {"root ::= \"a\" \"ab\" | \"aa\"", {"aab", "aa"}, {"a", "ab", "aaa"}},
    {"root ::= (\"if\" | id) \"(\"\nid ::= [a-z]+", {"if(", "iffy(", "i("}, {"(", "if", "I("}},
    // llama.cpp's own examples.
    {"root  ::= (expr \"=\" ws term \"\\n\")+\nexpr  ::= term ([-+*/] term)*\nterm  ::= ident | num | \"(\" ws expr "
     "\")\" ws\n"
     "ident ::= [a-z] [a-z0-9_]* ws\nnum   ::= [0-9]+ ws\nws    ::= [ \\t\\n]*",
     {"a+1=2\n", "(x1 *2) -3 = 4\n", "1=1\n2=2\n"},
     {"a+1=2", "a+=2\n", "(a=1\n", "1 * 2=3\n"}},
    {"root ::= item+\nitem ::= \"- \" [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ \"\\n\"",
     {"- one\n", "- one\n- zw\xc3\xb6lf\n"},
     {"- \n", "one\n", "- one"}},
    {"root ::= jp-char+ ([ \\t\\n] jp-char+)*\njp-char ::= hiragana | katakana | cjk\nhiragana ::= "
     "[\xe3\x81\x81-\xe3\x82\x9f]\n"
     "katakana ::= [\xe3\x82\xa1-\xe3\x83\xbf]\ncjk ::= [\xe4\xb8\x80-\xe9\xbf\xbf]",
     {"\xe6\x97\xa5\xe6\x9c\xac\xe3\x81\xae \xe3\x82\xab", "\xe3\x81\x82"},
     {"a", "\xe3\x81\x82 ", ""}},
    // Recursion in the middle, and counts.
    {"root ::= \"(\" root \")\" | \"\"", {"", "()", "((()))"}, {"(", "())", "()()"}},
    {"root ::= [0-9]{2,3} \".\" [0-9]{2} x?\nx ::= \"!\" | \"?\"{2,}",
     {"12.34", "123.45!", "12.34???"},
     {"1.23", "1234.56", "12.34?", "12.3"}},
};

class GbnfGrammar : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Tokenizers, GbnfGrammar, ::testing::Values("qwen2", "llama2"),
                         [](const auto& param) { return param.param; });

TEST_P(GbnfGrammar, HasItsTextsAndNoOthers) {
    const auto tokenizer = golden_tokenizer(GetParam());
    ASSERT_TRUE(tokenizer);
    const TokenId eos = *tokenizer->token_id(GetParam() == "qwen2" ? "<|im_end|>" : "</s>");
    const uint32_t vocab_size = tokenizer->vocab_size();
    std::vector<TokenId> of_byte(256, -1);
    for (uint32_t id = 0; id < vocab_size; ++id) {
        const auto bytes = tokenizer->token_bytes(TokenId(id));
        if (bytes.size() == 1 && !tokenizer->is_special(TokenId(id))) of_byte[uint8_t(bytes[0])] = TokenId(id);
    }
    for (const Case& one : kCases) {
        SCOPED_TRACE(one.grammar);
        auto lark = proto::gbnf_to_lark(one.grammar);
        ASSERT_TRUE(lark.ok()) << lark.error().message;
        // Byte by byte, since a text may be made of any tokens.
        const auto has = [&](const std::string& text) {
            auto grammar =
                Grammar::create(*tokenizer, GrammarKind::kLark, *lark, std::vector<TokenId>{eos}, vocab_size);
            EXPECT_TRUE(grammar.ok()) << (grammar.ok() ? "" : grammar.error().message);
            if (!grammar.ok()) return false;
            std::vector<uint32_t> words(mask_words(vocab_size));
            for (const char byte : text) {
                EXPECT_TRUE((*grammar)->mask(words).ok());
                const auto id = uint32_t(of_byte[uint8_t(byte)]);
                if ((words[id / 32] >> (id % 32) & 1) == 0) return false;
                EXPECT_TRUE((*grammar)->commit(TokenId(id)).ok());
            }
            return (*grammar)->complete();
        };
        for (const std::string& text : one.texts) EXPECT_TRUE(has(text)) << text;
        for (const std::string& text : one.others) EXPECT_FALSE(has(text)) << text;
    }
}

}  // namespace
}  // namespace lorad::model::gbnf_grammar_test
