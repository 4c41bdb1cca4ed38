#include "proto/schema/gbnf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lorad::proto::gbnf_test {
namespace {

using ::testing::HasSubstr;

std::string lark_of(std::string_view text) {
    auto lark = gbnf_to_lark(text);
    EXPECT_TRUE(lark.ok()) << text << "\n" << (lark.ok() ? "" : lark.error().message);
    return lark.ok() ? *lark : std::string();
}

TEST(Gbnf, EachCharacterBecomesATerminal) {
    EXPECT_EQ(lark_of("root ::= \"ab\""), "start: r0_root\nr0_root: (/[\\x{61}]/ /[\\x{62}]/)\n");
    EXPECT_EQ(lark_of("root ::= [a-c\\n] | . # a comment"),
              "start: r0_root\nr0_root: /[\\x{61}-\\x{63}\\x{A}]/ | /[\\x{0}-\\x{10FFFF}]/\n");
    EXPECT_EQ(lark_of("root ::= [^\"]* \"\""), "start: r0_root\nr0_root: /[^\\x{22}]/* \"\"\n");
    EXPECT_EQ(lark_of("root ::= [-a] [a-] \"\\u00e9\""),
              "start: r0_root\nr0_root: /[\\x{2D}\\x{61}]/ /[\\x{61}\\x{2D}]/ /[\\x{E9}]/\n");
}

TEST(Gbnf, RulesOfAnyNameStayApart) {
    const std::string lark = lark_of("root ::= a-b a_b A-B\na-b ::= \"1\"\na_b ::= \"2\"\nA-B ::= \"3\"\n");
    for (const char* part :
         {"r0_root: r1_a_b r2_a_b r3_a_b\n", "r1_a_b: /[\\x{31}]/\n", "r2_a_b: /[\\x{32}]/\n", "r3_a_b: /[\\x{33}]/\n"})
        EXPECT_THAT(lark, HasSubstr(part));
}

TEST(Gbnf, RepetitionsGroupsAndLines) {
    EXPECT_THAT(lark_of("root ::= (\"a\" |\n \"b\")+ [0-9]{2} [0-9]{,3} [0-9]{1,} x?\n\n# rules may follow a "
                        "comment\nx ::=\n  \"z\" |\n  \"y\""),
                HasSubstr("(/[\\x{61}]/ | /[\\x{62}]/)+ /[\\x{30}-\\x{39}]/{2,2} /[\\x{30}-\\x{39}]/{0,3} "
                          "/[\\x{30}-\\x{39}]/{1,} r1_x?"));
}

TEST(Gbnf, ErrorsNameLineAndColumn) {
    const std::pair<const char*, const char*> cases[] = {
        {"", "no rule called root"},
        {"a ::= \"x\"", "no rule called root"},
        {"root ::= b", "b is used and nowhere defined"},
        {"root ::= \"a", "line 1 column 12 of the grammar: expected the end of the text in quotes"},
        {"root ::= [a", "end of the characters in brackets"},
        {"root ::= []", "no characters"},
        {"root ::= [z-a]", "before it begins"},
        {"root ::= (\"a\"", "expected \")\""},
        {"root = \"a\"", "expected ::="},
        {"root ::= \"a\" )", "expected the end of the rule"},
        {"root ::= \"\\q\"", "an escape"},
        {"root ::= \"\\ud800\"", "hex digits"},
        {"root ::= \"\\x4", "hex digits"},
        {"root ::= a{5,2}\na ::= \"a\"", "more repetitions at least than at most"},
        {"root ::= \"a\"{99999}", "more than 2000"},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2 column 13 of the grammar: the rule root is defined twice"},
        {"root ::= <think>", "references to tokens"},
        {"root ::= \"a\"\n| \"b\"", "line 2 column 1 of the grammar: expected a rule's name"},
    };
    for (const auto& [text, what] : cases) {
        auto lark = gbnf_to_lark(text);
        ASSERT_FALSE(lark.ok()) << text;
        EXPECT_THAT(lark.error().message, HasSubstr(what)) << text;
    }
    EXPECT_FALSE(gbnf_to_lark("root ::= " + std::string(100000, '(')).ok());
}

TEST(Gbnf, IsToldFromLark) {
    EXPECT_TRUE(looks_like_gbnf("root ::= \"a\""));
    EXPECT_FALSE(looks_like_gbnf("start: \"a\""));
}

}  // namespace
}  // namespace lorad::proto::gbnf_test
