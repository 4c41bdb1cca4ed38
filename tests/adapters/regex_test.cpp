// Every expectation was compared with Python's re module.
#include "adapters/files/regex.h"

#include <string>

#include <gtest/gtest.h>

namespace lorad::adapters::regex_test {
namespace {

bool matches(std::string_view pattern, std::string_view text) {
    const Result<Regex> regex = Regex::compile(pattern);
    EXPECT_TRUE(regex.ok()) << pattern << ": " << (regex.ok() ? "" : regex.error().message);
    if (!regex.ok()) return false;
    RegexBudget budget;
    const Result<bool> found = regex->full_match(text, budget);
    EXPECT_TRUE(found.ok()) << pattern;
    return found.ok() && *found;
}

struct Case {
    const char* pattern;
    const char* text;
    bool matches;
};

TEST(Regex, MatchesWhatPythonMatches) {
    const Case cases[] = {
        {"abc", "abc", true},
        {"abc", "abcd", false},
        {"", "", true},
        {"", "a", false},
        {"a|bc|", "bc", true},
        {"a|bc|", "", true},
        {"a|bc|", "b", false},
        {"(a|b)*c", "ababc", true},
        {"a*?b", "aaab", true},
        {"a+", "", false},
        {"a?", "a", true},
        {"a?", "aa", false},
        {"a{2}", "aa", true},
        {"a{2}", "a", false},
        {"a{2,}", "aaaa", true},
        {"a{,2}", "aaa", false},
        {"a{,2}", "", true},
        {"a{1,3}b", "aaab", true},
        {"a{1,3}b", "aaaab", false},
        {"a{x}", "a{x}", true},
        {"a{", "a{", true},
        {"a{}", "a{}", true},
        {"(ab){2}", "abab", true},
        {"[abc]+", "cab", true},
        {"[^abc]", "d", true},
        {"[^abc]", "a", false},
        {"[a-c]", "b", true},
        {"[a-]", "-", true},
        {"[]a]", "]", true},
        {"[^]a]", "b", true},
        {"[\\d_]+", "12_3", true},
        {"[.]", "x", false},
        {"\\d+", "123", true},
        {"\\D", "1", false},
        {"\\w+", "a_1", true},
        {"\\W", "-", true},
        {"\\s", "\t", true},
        {"\\S", " ", false},
        {".", "\n", false},
        {"..", "ab", true},
        {"\\.", ".", true},
        {"\\.", "x", false},
        {"\\x41", "A", true},
        {"\\-", "-", true},
        {"^a$", "a", true},
        {"(.*\\.)?(^model)$", "model", true},
        {"(.*\\.)?(^model)$", "x.model", false},
        {"\\bab\\b.*", "ab-c", true},
        {"a\\bb", "ab", false},
        {"a\\Bb", "ab", true},
        {"(?:ab)+", "abab", true},
        {"(?P<name>a)b", "ab", true},
        {"a(?#note)b", "ab", true},
        {"(?=ab)a.", "ab", true},
        {"(?!ab)a.", "ab", false},
        {"(?!.*visual).*q_proj", "model.q_proj", true},
        {"(?!.*visual).*q_proj", "visual.q_proj", false},
        {".*(?<=_)proj", "q_proj", true},
        {".*(?<!_)proj", "q_proj", false},
        {"(a*)*", "aaa", true},
        {"(a|a)*b", "aaab", true},
        {"()*", "", true},
        {".*\\.layers\\.[02]\\.(self_attn\\.(q|o)_proj|mlp\\.down_proj)", "model.layers.2.mlp.down_proj", true},
        {".*\\.layers\\.[02]\\.(self_attn\\.(q|o)_proj|mlp\\.down_proj)", "model.layers.1.mlp.down_proj", false},
        {"(.*\\.)?(layers.1.self_attn.q_proj)$", "model.layers.1.self_attn.q_proj", true},
        {"(.*\\.)?(layers.1.self_attn.q_proj)$", "model.layers.11.self_attn.q_proj", false},
        {"(.*\\.)?(q_proj)$", "model.layers.0.self_attn.xq_proj", false},
    };
    for (const Case& c : cases) EXPECT_EQ(matches(c.pattern, c.text), c.matches) << c.pattern << " on " << c.text;
}

TEST(Regex, RefusesWhatPythonDoesNotCompile) {
    for (const char* pattern :
         {"(",     ")",  "a)",  "[a",    "[]",      "[^]", "*a",   "a**",  "a+*",  "a{2}{3}",   "a{3,1}", "(?Pa)",
          "[b-a]", "\\", "\\q", "[\\q]", "(?P<>a)", "^*",  "\\b+", "(?#x", "\\x1", "q_proj(.*", "(?"}) {
        const Result<Regex> regex = Regex::compile(pattern);
        ASSERT_FALSE(regex.ok()) << pattern;
        EXPECT_EQ(regex.error().code, ErrorCode::kAdapterInvalid) << pattern << ": " << regex.error().message;
    }
}

TEST(Regex, NamesWhatItDoesNotSupport) {
    for (const char* pattern :
         {"(a)\\1", "(?P<a>b)(?P=a)", "(?i)a", "(?>a)", "a++", "a*+", "(a)(?(1)a|b)", "a{2000}", "\\u0041"}) {
        const Result<Regex> regex = Regex::compile(pattern);
        ASSERT_FALSE(regex.ok()) << pattern;
        EXPECT_EQ(regex.error().code, ErrorCode::kAdapterUnsupported) << pattern << ": " << regex.error().message;
    }
}

TEST(Regex, DeepAndLargeExpressionsAreRefusedWithoutHarm) {
    EXPECT_FALSE(Regex::compile(std::string(5000, '(') + std::string(5000, ')')).ok());
    EXPECT_FALSE(Regex::compile("((((a{1000}){1000}){1000}){1000})").ok());
    EXPECT_FALSE(Regex::compile(std::string(100000, 'a')).ok());
    std::string nested = "a";
    for (int i = 0; i < 12; ++i) nested = "(" + nested + "){1,9}";
    EXPECT_FALSE(Regex::compile(nested).ok());
}

TEST(Regex, ExpressionsThatBacktrackForeverEndInLinearTime) {
    const std::string text(60, 'a');
    EXPECT_FALSE(matches("(a+)+b", text));
    EXPECT_FALSE(matches("(a|a|a)*b", text));
    EXPECT_FALSE(matches("(.*)*(.*)*(.*)*b", text));
}

TEST(Regex, TheBudgetEndsCostlyLookarounds) {
    std::string pattern = "x";
    for (int i = 0; i < 20; ++i) pattern = "(?=(.*" + pattern + "))a*";
    const Result<Regex> regex = Regex::compile(pattern);
    ASSERT_TRUE(regex.ok());
    RegexBudget budget{.n_steps = 100000};
    const Result<bool> found = regex->full_match(std::string(60, 'a'), budget);
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.error().code, ErrorCode::kAdapterUnsupported);
    EXPECT_EQ(budget.n_steps, 0u);
}

}  // namespace
}  // namespace lorad::adapters::regex_test
