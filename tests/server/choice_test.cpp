// Tokens that the host chooses: bans, bias, penalties, grammars and log-probabilities through the
// engine's own steps.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "server/engine/engine.h"
#include "tests/server/fake_runner.h"

namespace lorad::server::choice_test {
namespace {

using std::chrono::milliseconds;

class ChoiceTest : public ::testing::Test {
  protected:
    explicit ChoiceTest(SchedulerLimits limits = {128, 8, model::kBlockTokens}, uint32_t n_blocks = 64)
        : runner(n_blocks),
          metrics({"base", model::kBlockTokens, n_blocks, 4, "fake", "none", true}),
          engine(runner, metrics, {limits, n_blocks, 100, 3}) {}

    static Request request_of(std::vector<TokenId> prompt, uint32_t n_max) {
        Request request;
        request.prompt = std::move(prompt);
        request.n_tokens_max = n_max;
        request.sampling.temperature = 0.0f;
        request.stream = std::make_shared<TokenStream>(n_max);
        return request;
    }
    std::shared_ptr<TokenStream> submit(Request request) {
        auto stream = request.stream;
        EXPECT_TRUE(engine.submit(std::move(request)).ok());
        return stream;
    }
    TokenStream::Batch run(Request request) {
        auto stream = submit(std::move(request));
        run_until_idle();
        return stream->pop(milliseconds(0));
    }
    void run_until_idle() {
        for (int i = 0; i < 100000 && engine.step(); ++i) {
        }
    }

    FakeRunner runner;
    Metrics metrics;
    Engine engine;
};

const std::vector<TokenId> kPrompt = {5, 6, 7};

// The fake's logits are 50 for its token and 0 for all others.
const double kOwn = -std::log(1.0 + (kFakeVocab - 1) * std::exp(-50.0));

TEST_F(ChoiceTest, ABannedTokenGivesWayToTheNextBest) {
    Request request = request_of(kPrompt, 1);
    TokenId first = fake_continuation(kPrompt, kNoAdapterSlot, 1)[0];
    request.sampling.logit_bias = {{first, -100.0f}, {400, 1.0f}};
    EXPECT_EQ(run(std::move(request)).tokens, (std::vector<TokenId>{400}));
}

TEST_F(ChoiceTest, OnlyAllowedTokensCome) {
    Request request = request_of(kPrompt, 5);
    request.sampling.allowed_token_ids = {11, 12};
    for (TokenId token : run(std::move(request)).tokens) EXPECT_TRUE(token == 11 || token == 12);
}

TEST_F(ChoiceTest, PresenceLetsATokenComeOnlyOnce) {
    Request request = request_of(kPrompt, 20);
    request.sampling.allowed_token_ids = {11, 12, 13};
    request.sampling.logit_bias = {{11, 3.0f}, {12, 2.0f}, {13, 1.9f}};
    request.sampling.presence_penalty = 2.0f;
    std::vector<TokenId> tokens = run(std::move(request)).tokens;
    // 3 2 1.9 -> 1 2 1.9 -> 1 0 1.9 -> 1 0 -0.1 and so on; where the model's own is allowed it wins.
    ASSERT_EQ(tokens.size(), 20u);
    EXPECT_EQ(std::vector<TokenId>(tokens.begin(), tokens.begin() + 4), (std::vector<TokenId>{11, 12, 13, 11}));
}

TEST_F(ChoiceTest, FrequencyCountsEveryOccurrence) {
    Request request = request_of(kPrompt, 6);
    request.sampling.allowed_token_ids = {11, 12};
    request.sampling.logit_bias = {{11, 3.5f}};
    request.sampling.frequency_penalty = 1.0f;
    // 11 has 3.5, 2.5, 1.5, 0.5, then -0.5 against 0, then 12 has -1.
    EXPECT_EQ(run(std::move(request)).tokens, (std::vector<TokenId>{11, 11, 11, 11, 12, 11}));
}

TEST_F(ChoiceTest, RepetitionCountsThePromptToo) {
    Request request = request_of({5, 11}, 1);
    request.sampling.allowed_token_ids = {11, 12};
    request.sampling.logit_bias = {{11, 3.0f}, {12, 2.0f}};
    request.sampling.repetition_penalty = 1.6f;  // 3 / 1.6 < 2
    EXPECT_EQ(run(std::move(request)).tokens, (std::vector<TokenId>{12}));
}

TEST_F(ChoiceTest, NoStopTokenComesBeforeTheLeastNumberOfTokens) {
    std::vector<TokenId> expected = fake_continuation(kPrompt, kNoAdapterSlot, 3);
    Request request = request_of(kPrompt, 10);
    request.stop_tokens = {expected[2]};
    EXPECT_EQ(run(std::move(request)).tokens, expected);
    request = request_of(kPrompt, 10);
    request.stop_tokens = {expected[2]};
    request.n_tokens_min = 3;
    std::vector<TokenId> tokens = run(std::move(request)).tokens;
    ASSERT_GE(tokens.size(), 3u);
    EXPECT_EQ(std::count(tokens.begin(), tokens.begin() + 3, expected[2]), 0);
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.begin() + 2, expected.begin()));
}

TEST_F(ChoiceTest, WhatLeavesNoTokenEndsWithAnErrorOfItsOwn) {
    Request request = request_of(kPrompt, 3);
    request.sampling.allowed_token_ids = {11};
    request.stop_tokens = {11};
    request.n_tokens_min = 2;
    auto other = submit(request_of(kPrompt, 4));
    TokenStream::Batch batch = run(std::move(request));
    ASSERT_TRUE(batch.end && batch.end->error);
    EXPECT_EQ(batch.end->error->code, ErrorCode::kInvalidRequest);
    EXPECT_EQ(other->pop(milliseconds(0)).tokens, fake_continuation(kPrompt, kNoAdapterSlot, 4));
}

TEST_F(ChoiceTest, LogprobsStandBesideEachToken) {
    Request request = request_of(kPrompt, 4);
    request.n_logprobs = 3;
    TokenStream::Batch batch = run(std::move(request));
    ASSERT_EQ(batch.logprobs.size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(batch.logprobs[i].token.id, batch.tokens[i]);
        EXPECT_NEAR(double(batch.logprobs[i].token.logprob), kOwn, 1e-6);
        EXPECT_EQ(batch.logprobs[i].token.rank, 1u);
        ASSERT_EQ(batch.logprobs[i].top.size(), 3u);
        EXPECT_NEAR(double(batch.logprobs[i].top[1].logprob), kOwn - 50.0, 1e-5);
    }
}

TEST_F(ChoiceTest, LogprobsAreTheModelsOwnWhateverIsBanned) {
    Request request = request_of(kPrompt, 1);
    TokenId first = fake_continuation(kPrompt, kNoAdapterSlot, 1)[0];
    request.sampling.logit_bias = {{first, -100.0f}};
    request.n_logprobs = 1;
    TokenStream::Batch batch = run(std::move(request));
    EXPECT_NE(batch.tokens[0], first);
    EXPECT_NEAR(double(batch.logprobs[0].token.logprob), kOwn - 50.0, 1e-5);
    EXPECT_EQ(batch.logprobs[0].top[0].id, first);
}

class SmallPoolTest : public ChoiceTest {
  protected:
    SmallPoolTest() : ChoiceTest({70, 8, model::kBlockTokens}, 8) {}
};

TEST_F(SmallPoolTest, LogprobsOfPromptsComeOnceAlsoAfterPreemptions) {
    std::vector<std::shared_ptr<TokenStream>> streams;
    std::vector<std::vector<TokenId>> prompts;
    for (uint32_t i = 0; i < 5; ++i) {
        std::vector<TokenId> prompt;
        for (uint32_t j = 0; j < 100 + i; ++j) prompt.push_back(TokenId((i * 131 + j * 17) % kFakeVocab));
        // Some tokens as the model would have them.
        for (uint32_t j : {3u, 90u}) {
            std::span<const TokenId> before(prompt.data(), j);
            prompt[j] = fake_continuation(before, {}, 1)[0];
        }
        Request request = request_of(prompt, 60);
        request.n_prompt_logprobs = 2;
        request.may_skip_prefix = false;
        streams.push_back(submit(std::move(request)));
        prompts.push_back(prompt);
    }
    auto plain = submit(request_of(prompts[0], 60));
    run_until_idle();
    EXPECT_EQ(plain->pop(milliseconds(0)).tokens, fake_continuation(prompts[0], kNoAdapterSlot, 60));
    EXPECT_EQ(runner.n_broken(), 0u);
    for (uint32_t i = 0; i < streams.size(); ++i) {
        TokenStream::Batch batch = streams[i]->pop(milliseconds(0));
        EXPECT_EQ(batch.tokens, fake_continuation(prompts[i], kNoAdapterSlot, 60)) << i;
        ASSERT_EQ(batch.prompt_logprobs.size(), prompts[i].size() - 1) << i;
        for (uint32_t j = 1; j < prompts[i].size(); ++j) {
            const proto::TokenLogprobs& found = batch.prompt_logprobs[j - 1];
            TokenId best = fake_continuation(std::span(prompts[i]).first(j), {}, 1)[0];
            EXPECT_EQ(found.token.id, prompts[i][j]);
            ASSERT_EQ(found.top.size(), 2u);
            EXPECT_EQ(found.top[0].id, best) << i << " at " << j;
            EXPECT_NEAR(double(found.token.logprob), prompts[i][j] == best ? kOwn : kOwn - 50.0, 1e-5);
        }
    }
    EXPECT_EQ(metrics.text({}).find("vllm:num_preemptions_total{model_name=\"base\"} 0\n"), std::string::npos)
        << "nothing was preempted";
}

// Allows the tokens of one text after the other, then the end.
class TextsConstraint final : public TokenConstraint {
  public:
    TextsConstraint(std::vector<std::vector<TokenId>> texts, TokenId eos) : texts_(std::move(texts)), eos_(eos) {}
    Status next_mask(std::vector<uint32_t>& words) override {
        words.assign(kMaskWords, 0);
        for (const auto& text : texts_) {
            TokenId next = n_ < text.size() ? text[n_] : eos_;
            words[size_t(next) / 32] |= 1u << (next % 32);
        }
        ++n_masks;
        return ok_status();
    }
    Status accept(TokenId token) override {
        std::erase_if(texts_, [&](const auto& text) { return (n_ < text.size() ? text[n_] : eos_) != token; });
        ++n_;
        if (texts_.empty()) return make_error(ErrorCode::kInternal, "not allowed");
        return ok_status();
    }
    Result<std::unique_ptr<TokenConstraint>> duplicate() const override {
        return std::unique_ptr<TokenConstraint>(std::make_unique<TextsConstraint>(*this));
    }
    uint32_t n_masks = 0;

  private:
    std::vector<std::vector<TokenId>> texts_;
    const TokenId eos_;
    size_t n_ = 0;
};

TEST_F(ChoiceTest, AGrammarLeadsItsOwnRequestAndNoOther) {
    const TokenId eos = 996;
    std::vector<std::shared_ptr<TokenStream>> streams;
    std::vector<std::shared_ptr<TextsConstraint>> constraints;
    for (uint32_t i = 0; i < 6; ++i) {
        Request request = request_of({TokenId(i), 9}, 12);
        request.stop_tokens = {eos};
        if (i % 2 == 0) {
            constraints.push_back(
                std::make_shared<TextsConstraint>(std::vector<std::vector<TokenId>>{{20, 21, 22}, {20, 30}}, eos));
            request.constraint = constraints.back();
            if (i == 4) request.n_tokens_min = 12;  // gives way to the grammar
            if (i == 2) {
                request.sampling.temperature = 1.5f;
                request.sampling.seed = 3;
            }
        }
        streams.push_back(submit(std::move(request)));
    }
    run_until_idle();
    for (uint32_t i = 0; i < 6; ++i) {
        TokenStream::Batch batch = streams[i]->pop(milliseconds(0));
        if (i % 2 == 1) {
            EXPECT_EQ(batch.tokens, fake_continuation({TokenId(i), 9}, kNoAdapterSlot, 12));
            continue;
        }
        EXPECT_TRUE(batch.tokens == (std::vector<TokenId>{20, 21, 22, eos}) ||
                    batch.tokens == (std::vector<TokenId>{20, 30, eos}))
            << i;
        EXPECT_EQ(batch.end->reason, FinishReason::kStop);
        EXPECT_EQ(constraints[i / 2]->n_masks, batch.tokens.size()) << "one mask for each token";
    }
}

}  // namespace
}  // namespace lorad::server::choice_test
