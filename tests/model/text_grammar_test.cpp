// Grammars: what the mask allows is what keeps the text in the language, and nothing else is taken.
#include <algorithm>
#include <random>

#include "model/output/logits.h"
#include "tests/model/text_goldens.h"

namespace lorad::model::text_grammar_test {
namespace {

class GrammarOf : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Tokenizers, GrammarOf, ::testing::Values("qwen2", "llama2", "gemma"),
                         [](const auto& param) { return param.param; });

struct Setting {
    std::shared_ptr<const Tokenizer> tokenizer;
    TokenId eos;
    uint32_t vocab_size;  // wider than the tokenizer, as the logits of real models are
};

Setting setting_of(const std::string& name) {
    Setting setting{golden_tokenizer(name), 0, 0};
    for (const char* eos : {"<|im_end|>", "</s>", "<eos>"}) {
        if (const auto id = setting.tokenizer->token_id(eos)) {
            setting.eos = *id;
            break;
        }
    }
    setting.vocab_size = setting.tokenizer->vocab_size() + 45;
    return setting;
}

std::unique_ptr<Grammar> make(const Setting& setting, GrammarKind kind, std::string_view source) {
    auto grammar =
        Grammar::create(*setting.tokenizer, kind, source, std::vector<TokenId>{setting.eos}, setting.vocab_size);
    EXPECT_TRUE(grammar.ok()) << (grammar.ok() ? "" : grammar.error().message);
    return grammar.ok() ? std::move(grammar).value() : nullptr;
}

std::vector<TokenId> allowed(Grammar& grammar, const Setting& setting) {
    std::vector<uint32_t> words(mask_words(setting.vocab_size), 0xffffffffu);
    EXPECT_TRUE(grammar.mask(words).ok());
    std::vector<TokenId> ids;
    for (uint32_t id = 0; id < words.size() * 32; ++id) {
        if ((words[id / 32] >> (id % 32) & 1) != 0) ids.push_back(static_cast<TokenId>(id));
    }
    return ids;
}

// Walks at random through what the mask allows until the end token; the text's bytes.
std::string random_walk(Grammar& grammar, const Setting& setting, std::mt19937& random) {
    std::string text;
    for (int step = 0; step < 300; ++step) {
        const auto ids = allowed(grammar, setting);
        EXPECT_FALSE(ids.empty());
        if (ids.empty()) return text;
        const bool may_end = std::find(ids.begin(), ids.end(), setting.eos) != ids.end();
        EXPECT_EQ(may_end, grammar.complete());
        const TokenId id = may_end && (step > 40 || random() % 8 == 0) ? setting.eos : ids[random() % ids.size()];
        EXPECT_TRUE(grammar.commit(id).ok());
        if (id == setting.eos) {
            EXPECT_TRUE(grammar.finished());
            return text;
        }
        EXPECT_LT(static_cast<uint32_t>(id), setting.tokenizer->vocab_size());
        EXPECT_FALSE(setting.tokenizer->is_special(id));
        text += setting.tokenizer->token_bytes(id);
    }
    ADD_FAILURE() << "no end after 300 tokens: " << text;
    return text;
}

TEST_P(GrammarOf, JsonSchemaLeadsToMatchingJson) {
    const Setting setting = setting_of(GetParam());
    std::mt19937 random(3);
    for (int round = 0; round < 5; ++round) {
        const auto grammar = make(setting, GrammarKind::kJsonSchema,
                                  R"({"type":"object","properties":{"ok":{"type":"boolean"},"n":{"enum":[1,22]}},
                                     "required":["ok","n"],"additionalProperties":false})");
        const auto json = nlohmann::json::parse(random_walk(*grammar, setting, random), nullptr, false);
        ASSERT_TRUE(json.is_object());
        EXPECT_TRUE(json["ok"].is_boolean());
        EXPECT_TRUE(json["n"] == 1 || json["n"] == 22);
        EXPECT_EQ(json.size(), 2u);
    }
}

TEST_P(GrammarOf, NumbersKeepToExclusiveBounds) {
    const Setting setting = setting_of(GetParam());
    std::mt19937 random(11);
    struct Case {
        const char* schema;
        double above, below;
    };
    const Case cases[] = {{R"({"type":"number","exclusiveMinimum":10,"maximum":10.5})", 10, 10.5001},
                          {R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":0.25})", 0, 0.25},
                          {R"({"type":"number","minimum":-10.5,"exclusiveMaximum":-10})", -10.5001, -10},
                          {R"({"type":"number","exclusiveMinimum":-3,"maximum":-2.5})", -3, -2.4999},
                          {R"({"type":"integer","exclusiveMinimum":10,"maximum":12})", 10, 12.5}};
    for (const Case& one : cases) {
        for (int round = 0; round < 8; ++round) {
            const auto grammar = make(setting, GrammarKind::kJsonSchema, one.schema);
            ASSERT_TRUE(grammar);
            const double value = nlohmann::json::parse(random_walk(*grammar, setting, random)).get<double>();
            EXPECT_GT(value, one.above) << one.schema;
            EXPECT_LT(value, one.below) << one.schema;
        }
    }
}

TEST_P(GrammarOf, RegexAllowsExactlyItsTexts) {
    const Setting setting = setting_of(GetParam());
    std::mt19937 random(5);
    for (int round = 0; round < 10; ++round) {
        const auto grammar = make(setting, GrammarKind::kRegex, "(ab|cd){1,3}!");
        const std::string text = random_walk(*grammar, setting, random);
        ASSERT_GE(text.size(), 3u);
        EXPECT_EQ(text.back(), '!');
        for (size_t i = 0; i + 1 < text.size(); i += 2) {
            EXPECT_TRUE(text.substr(i, 2) == "ab" || text.substr(i, 2) == "cd") << text;
        }
    }
}

TEST_P(GrammarOf, LarkGrammarIsFollowed) {
    const Setting setting = setting_of(GetParam());
    std::mt19937 random(9);
    const auto grammar =
        make(setting, GrammarKind::kLark, "start: \"yes\" | \"no\" \" \" NUMBER\nNUMBER: /[0-9]{2}/\n");
    const std::string text = random_walk(*grammar, setting, random);
    EXPECT_TRUE(text == "yes" || (text.size() == 5 && text.substr(0, 3) == "no ")) << text;
}

TEST_P(GrammarOf, RefusesTokensThatItDoesNotAllow) {
    const Setting setting = setting_of(GetParam());
    const auto grammar = make(setting, GrammarKind::kRegex, "[0-9]+");
    const auto ids = allowed(*grammar, setting);
    for (const TokenId id : {setting.eos, static_cast<TokenId>(setting.vocab_size), TokenId{-1}}) {
        const Status taken = grammar->commit(id);
        ASSERT_FALSE(taken.ok());
        EXPECT_EQ(taken.error().code, ErrorCode::kInvalidRequest);
    }
    // A refusal changes nothing.
    EXPECT_EQ(allowed(*grammar, setting), ids);
    EXPECT_FALSE(grammar->complete());
    EXPECT_TRUE(grammar->commit(ids.front()).ok());
    EXPECT_TRUE(grammar->complete());
}

TEST(Grammar, RefusesWhatIsNoGrammar) {
    const Setting setting = setting_of("qwen2");
    const std::vector<TokenId> eos{setting.eos};
    const auto refused = [&](GrammarKind kind, std::string_view source) {
        const auto grammar = Grammar::create(*setting.tokenizer, kind, source, eos, setting.vocab_size);
        return !grammar.ok() && grammar.error().code == ErrorCode::kInvalidRequest && !grammar.error().message.empty();
    };
    EXPECT_TRUE(refused(GrammarKind::kJsonSchema, "{"));
    EXPECT_TRUE(refused(GrammarKind::kJsonSchema, R"({"type":"nosuch"})"));
    EXPECT_TRUE(refused(GrammarKind::kRegex, "(unclosed"));
    EXPECT_TRUE(refused(GrammarKind::kLark, "start: nosuchrule"));
    EXPECT_TRUE(refused(GrammarKind::kLark, "\xff"));
    EXPECT_FALSE(Grammar::create(*setting.tokenizer, GrammarKind::kRegex, "a", {}, setting.vocab_size).ok());
    EXPECT_FALSE(Grammar::create(*setting.tokenizer, GrammarKind::kRegex, "a", eos, 10).ok());
}

TEST(Grammar, RefusesAMaskOfTheWrongSize) {
    const Setting setting = setting_of("qwen2");
    const auto grammar = make(setting, GrammarKind::kRegex, "a+");
    std::vector<uint32_t> words(mask_words(setting.vocab_size) + 1);
    EXPECT_FALSE(grammar->mask(words).ok());
}

// A vocabulary's tree is made once, for whichever ends come first; adapters bring ends of their own.
TEST_P(GrammarOf, EachHasItsOwnEnds) {
    const Setting first = setting_of(GetParam());
    ASSERT_TRUE(make(first, GrammarKind::kRegex, "a?"));
    std::vector<TokenId> others;
    for (TokenId id = 0; others.size() < 2 && size_t(id) < first.vocab_size; ++id) {
        if (first.tokenizer->is_special(id) && id != first.eos) others.push_back(id);
    }
    ASSERT_EQ(others.size(), 2u);
    auto grammar = Grammar::create(*first.tokenizer, GrammarKind::kRegex, "ab?", others, first.vocab_size);
    ASSERT_TRUE(grammar.ok()) << grammar.error().message;
    const auto has = [](const std::vector<TokenId>& ids, TokenId id) {
        return std::find(ids.begin(), ids.end(), id) != ids.end();
    };
    const auto begin = allowed(**grammar, first);
    for (const TokenId end : {first.eos, others[0], others[1]}) EXPECT_FALSE(has(begin, end));
    for (const TokenId id : begin) {
        if (first.tokenizer->token_bytes(id) != "a") continue;
        ASSERT_TRUE((*grammar)->commit(id).ok());
        break;
    }
    const auto then = allowed(**grammar, first);
    EXPECT_TRUE(has(then, others[0]) && has(then, others[1]));
    EXPECT_FALSE(has(then, first.eos));
    EXPECT_FALSE((*grammar)->commit(first.eos).ok());
    EXPECT_TRUE((*grammar)->commit(others[1]).ok());
    EXPECT_TRUE((*grammar)->finished());
}

}  // namespace
}  // namespace lorad::model::text_grammar_test
