// Words that an answer must not have: alone, around a grammar, and over HTTP.
#include "server/engine/bad_words.h"

#include "server/http/generate/bad_word_tokens.h"
#include "server/http/generate/generation.h"
#include "tests/server/http_fixture.h"

namespace lorad::server::bad_words_test {
namespace {

bool allows(TokenConstraint& constraint, TokenId token) {
    std::vector<uint32_t> words;
    EXPECT_TRUE(constraint.next_mask(words).ok());
    return (words.at(size_t(token) / 32) >> (token % 32) & 1) != 0;
}

TEST(BadWords, TheLastTokenOfASequenceMayNotFollowTheOthers) {
    BadWords words(std::make_shared<const BadWords::Sequences>(BadWords::Sequences{{5}, {1, 2, 3}}), 70);
    EXPECT_FALSE(allows(words, 5));
    EXPECT_TRUE(allows(words, 3));
    EXPECT_TRUE(allows(words, 69));
    std::vector<uint32_t> mask;
    ASSERT_TRUE(words.next_mask(mask).ok());
    EXPECT_EQ(mask.back(), (1u << (70 - 64)) - 1) << "nothing beyond the vocabulary";
    for (TokenId token : {1, 1, 2}) {
        EXPECT_TRUE(allows(words, 3));
        ASSERT_TRUE(words.accept(token).ok());
    }
    EXPECT_FALSE(allows(words, 3));
    auto copy = *words.duplicate();
    EXPECT_FALSE(allows(*copy, 3)) << "in the same state";
    ASSERT_TRUE(words.accept(4).ok());
    EXPECT_TRUE(allows(words, 3));
    EXPECT_FALSE(allows(*copy, 3)) << "and for itself";
    for (int i = 0; i < 1000; ++i) ASSERT_TRUE(words.accept(i % 60).ok());
    for (TokenId token : {1, 2}) ASSERT_TRUE(words.accept(token).ok());
    EXPECT_FALSE(allows(words, 3)) << "however long the answer is";
}

class OneToken final : public TokenConstraint {
  public:
    explicit OneToken(TokenId token) : token_(token) {}
    Status next_mask(std::vector<uint32_t>& words) override {
        words.assign(3, 0);
        words[size_t(token_) / 32] |= 1u << (token_ % 32);
        return ok_status();
    }
    Status accept(TokenId) override { return ok_status(); }
    Result<std::unique_ptr<TokenConstraint>> duplicate() const override {
        return std::unique_ptr<TokenConstraint>(std::make_unique<OneToken>(token_));
    }

  private:
    TokenId token_;
};

TEST(BadWords, AGrammarThatAllowsNothingElseIsAnError) {
    auto sequences = std::make_shared<const BadWords::Sequences>(BadWords::Sequences{{5}});
    BadWords other(sequences, 70, std::make_unique<OneToken>(6));
    EXPECT_TRUE(allows(other, 6));
    EXPECT_FALSE(allows(other, 7));
    BadWords same(sequences, 70, std::make_unique<OneToken>(5));
    std::vector<uint32_t> mask;
    EXPECT_EQ(same.next_mask(mask).error().param, "bad_words");
}

// As one whose memory counts: so many of it may be there at a time.
class Counted final : public TokenConstraint {
  public:
    Counted(int& n_there, int n_max) : n_there_(n_there), n_max_(n_max) { ++n_there_; }
    ~Counted() override { --n_there_; }
    Status next_mask(std::vector<uint32_t>& words) override {
        words.assign(3, ~0u);
        return ok_status();
    }
    Status accept(TokenId) override { return ok_status(); }
    double mask_seconds() const override { return 0.5; }
    Result<std::unique_ptr<TokenConstraint>> duplicate() const override {
        if (n_there_ == n_max_) return make_error(ErrorCode::kOverloaded, "no memory for it");
        return std::unique_ptr<TokenConstraint>(std::make_unique<Counted>(n_there_, n_max_));
    }

  private:
    int& n_there_;
    const int n_max_;
};

TEST(BadWords, ThereAreNoMoreGrammarsThanAnswers) {
    constexpr int kAnswers = 4;
    int n_there = 0;
    FakeCodec text;
    {
        std::vector<Request> requests(kAnswers);
        ASSERT_TRUE(share_constraint(std::make_unique<Counted>(n_there, kAnswers), "regex", requests).ok());
        ASSERT_TRUE(add_bad_words(text, {"x"}, 256, requests).ok());
        EXPECT_EQ(n_there, kAnswers);
        for (size_t i = 0; i < requests.size(); ++i) {
            EXPECT_EQ(requests[i].constraint->mask_seconds(), 0.5) << "the grammar's own";
            for (size_t j = 0; j < i; ++j) EXPECT_NE(requests[i].constraint, requests[j].constraint);
        }
    }
    EXPECT_EQ(n_there, 0);
    std::vector<Request> requests(kAnswers + 1);
    const Status refused = share_constraint(std::make_unique<Counted>(n_there, kAnswers), "regex", requests);
    EXPECT_EQ(refused.error().code, ErrorCode::kOverloaded);
    EXPECT_EQ(refused.error().param, "regex");
    EXPECT_EQ(refused.error().message, "regex: no memory for it");
}

TEST_F(HttpTest, BadWordsAreNotInTheAnswer) {
    // The fake tokenizer has one token for each byte: 'x' is 120.
    auto said = [&](const std::string& more) {
        const std::string text = completion_text(
            R"({"prompt":[5,6],"max_tokens":200,"ignore_eos":true,"temperature":1.5,"seed":3)" + more + "}");
        return text;
    };
    const std::string free = said("");
    ASSERT_NE(free.find("<"), std::string::npos);
    // A token of the free answer that a byte stands for.
    std::string word;
    for (int byte = 'a'; byte <= 'z' && word.empty(); ++byte) {
        if (free.find("<" + std::to_string(byte) + ">") != std::string::npos) word = std::string(1, char(byte));
    }
    ASSERT_FALSE(word.empty());
    const std::string token = "<" + std::to_string(int(word[0])) + ">";
    EXPECT_EQ(said(",\"bad_words\":[\"" + word + "\"]").find(token), std::string::npos);
    EXPECT_EQ(said(",\"bad_words\":[\"" + word + "zzz\"]"), free) << "a word whose begin is said may be begun";
    EXPECT_EQ(post("/v1/completions", R"({"prompt":[1],"bad_words":[""]})").param, "bad_words[0]");
    EXPECT_EQ(post("/v1/completions", R"({"prompt":[1],"bad_words":"x"})").param, "bad_words");
}

TEST_F(HttpTest, TruncatedPromptsAreTheLastTokens) {
    auto prompt_of = [&](const std::string& fields) {
        Answer answer = post("/v1/completions", "{\"max_tokens\":2,\"echo\":true," + fields + "}");
        EXPECT_EQ(answer.status, 200) << answer.body;
        auto document = parse_json(answer.body);
        const std::string text(*document->root().find("choices")->as_array()->at(0).string_or("text", ""));
        return text.substr(0, text.find('<'));
    };
    EXPECT_EQ(prompt_of(R"("prompt":"abcdef","truncate_prompt_tokens":3)"), "def");
    EXPECT_EQ(prompt_of(R"("prompt":"abcdef","truncate_prompt_tokens":6)"), "abcdef");
    EXPECT_EQ(prompt_of(R"("prompt":"abcdef","truncate_prompt_tokens":60)"), "abcdef");
    const std::string long_text(600, 'a');
    EXPECT_EQ(prompt_of("\"prompt\":\"" + long_text + "\",\"truncate_prompt_tokens\":-1"),
              std::string(kPositionsMax - 2, 'a'));
    EXPECT_EQ(post("/v1/completions", "{\"prompt\":\"" + long_text + "\",\"max_tokens\":2}").code,
              "context_length_exceeded");
    Answer chat = post("/v1/chat/completions/render",
                       R"({"messages":[{"role":"user","content":"abcdef"}],"truncate_prompt_tokens":2})");
    EXPECT_NE(chat.body.find(R"("prompt":"ef")"), std::string::npos) << chat.body;
    EXPECT_EQ(post("/v1/completions", R"({"prompt":"a","truncate_prompt_tokens":0})").param, "truncate_prompt_tokens");
    EXPECT_EQ(post("/v1/embeddings", "{\"input\":\"" + long_text + "\"}").code, "context_length_exceeded");
    EXPECT_EQ(post("/v1/embeddings", "{\"input\":\"" + long_text + "\",\"truncate_prompt_tokens\":-1}").status, 200);
    EXPECT_EQ(post("/tokenize", R"({"prompt":"a","truncate_prompt_tokens":1})").param, "truncate_prompt_tokens")
        << "all are counted";
}

}  // namespace
}  // namespace lorad::server::bad_words_test
