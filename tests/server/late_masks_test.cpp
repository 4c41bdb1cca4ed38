// Grammars that take long: their own tokens come late, nobody else's.
#include <algorithm>
#include <thread>

#include <gtest/gtest.h>

#include "server/engine/bad_words.h"
#include "tests/server/engine_fixture.h"
#include "tests/server/hash_constraint.h"
#include "tests/support/soon.h"

namespace lorad::server::late_masks_test {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

struct Asked {
    std::vector<TokenId> prompt;
    uint32_t n_max = 0;
    std::string tenant;
    std::shared_ptr<TokenConstraint> constraint;
};

std::shared_ptr<TokenStream> submit(EngineFixture& fixture, const Asked& asked) {
    Request request;
    request.prompt = asked.prompt;
    request.n_tokens_max = asked.n_max;
    request.sampling.temperature = 0.0f;
    request.tenant = asked.tenant;
    request.constraint = asked.constraint;
    request.prefix = fake_prefix(request.adapter, request.prompt);
    request.stream = std::make_shared<TokenStream>(asked.n_max);
    auto stream = request.stream;
    EXPECT_TRUE(fixture.engine.submit(std::move(request)).ok());
    return stream;
}

std::shared_ptr<HashConstraint> grammar(uint64_t seed, milliseconds delay) {
    auto out = std::make_shared<HashConstraint>(kFakeVocab, seed);
    out->delay = delay;
    return out;
}

class LateMasks : public ::testing::TestWithParam<bool> {
  protected:
    LateMasks() : fixture_(options()) {
        fixture_.runner.spread_logits_ = true;
        fixture_.runner.step_time_ = std::chrono::microseconds(500);
    }
    static EngineOptions options() {
        EngineOptions out;
        out.limits = {256, 40, model::kBlockTokens};
        out.n_kv_blocks = 200;
        out.n_waiting_max = 100;
        out.n_sampling_threads = 3;
        out.draws_on_device = GetParam();
        return out;
    }
    // Steps until the stream has ended; the longest gaps between its tokens first.
    std::vector<double> gaps_of(TokenStream& stream, std::vector<TokenId>& tokens) {
        std::vector<double> gaps;
        Clock::time_point last = Clock::now();
        for (bool ended = false; !ended;) {
            fixture_.engine.step();
            TokenStream::Batch batch = stream.pop(milliseconds(0));
            ended = batch.end.has_value();
            if (batch.tokens.empty()) continue;
            tokens.insert(tokens.end(), batch.tokens.begin(), batch.tokens.end());
            gaps.push_back(std::chrono::duration<double>(Clock::now() - last).count());
            last = Clock::now();
        }
        std::ranges::sort(gaps, std::greater<>());
        return gaps;
    }

    // `constraint` is `grammar` or around it.
    void expect_nobody_waits_for(std::shared_ptr<TokenConstraint> constraint, const HashConstraint& grammar) {
        auto free = submit(fixture_, {{77, 9, 4}, 100, "free", nullptr});
        for (int i = 0; i < 5; ++i) fixture_.engine.step();
        Request request;
        request.constraint = constraint;
        EXPECT_EQ(ChoiceState(request).mask_seconds(), grammar.first_seconds)
            << "so that the first mask is patient already";
        auto slow = submit(fixture_, {{1, 2, 3}, 3, "slow", std::move(constraint)});
        const uint64_t n_steps = fixture_.runner.n_steps();
        std::vector<TokenId> tokens;
        gaps_of(*free, tokens);
        EXPECT_GE(fixture_.runner.n_steps() - n_steps, 90u);
        EXPECT_LE(grammar.n_masks, 3u);
        fixture_.run_until_idle();
        EXPECT_EQ(slow->pop(milliseconds(0)).tokens.size(), 3u);
    }

    EngineFixture fixture_;
};

// 400 ms for each mask, thirty answers: seconds for each step, if anybody waited for them.
TEST_P(LateMasks, ThirtyAnswersWithASlowGrammarDelayNobodyElse) {
    auto free = submit(fixture_, {{77, 9, 4}, 300, "free", nullptr});
    for (int i = 0; i < 4; ++i) fixture_.engine.step();
    std::vector<std::shared_ptr<TokenStream>> slow;
    for (uint32_t i = 0; i < 30; ++i)
        slow.push_back(submit(fixture_, {{TokenId(i), 9, 4}, 50, "slow", grammar(5, milliseconds(400))}));
    std::vector<TokenId> tokens;
    const std::vector<double> gaps = gaps_of(*free, tokens);
    EXPECT_EQ(tokens, fake_continuation({77, 9, 4}, kNoAdapterSlot, 300));
    // A wait for masks is 15 ms, and there are two or three; the machine may add some of its own.
    EXPECT_LT(gaps.front(), 0.6) << "the longest gap";
    EXPECT_LT(gaps[gaps.size() / 2], 0.012) << "half of the gaps";
    EXPECT_EQ(fixture_.runner.n_broken(), 0u);
    for (auto& stream : slow) stream->cancel(FinishReason::kCancelled);
    fixture_.run_until_idle();
}

// 300 ms to take a token: longer than the other answer's whole time. Nobody waits, and the last token is not told to
// the grammar at all.
TEST_P(LateMasks, AGrammarThatIsSlowToTakeATokenDelaysNobodyElse) {
    auto free = submit(fixture_, {{77, 9, 4}, 100, "free", nullptr});
    auto constraint = grammar(5, milliseconds(0));
    constraint->accept_delay = milliseconds(300);
    auto slow = submit(fixture_, {{1, 9, 4}, 3, "slow", constraint});
    const uint64_t n_steps = fixture_.runner.n_steps();
    std::vector<TokenId> tokens;
    const std::vector<double> gaps = gaps_of(*free, tokens);
    EXPECT_EQ(tokens, fake_continuation({77, 9, 4}, kNoAdapterSlot, 100));
    EXPECT_LT(gaps.front(), 0.25) << "the longest gap";
    EXPECT_GE(fixture_.runner.n_steps() - n_steps, 98u);
    fixture_.run_until_idle();
    const TokenStream::Batch batch = slow->pop(milliseconds(0));
    ASSERT_TRUE(batch.end);
    EXPECT_EQ(batch.end->reason, FinishReason::kLength);
    EXPECT_EQ(batch.tokens.size(), 3u);
    EXPECT_EQ(constraint->n_accepted, 2u);
    EXPECT_EQ(constraint->n_masks, 3u);
}

TEST_P(LateMasks, LateTokensAreTheSame) {
    constexpr uint32_t kAnswers = 5, kTokens = 4;
    auto free = submit(fixture_, {{77, 9, 4}, 400, "free", nullptr});
    std::vector<std::shared_ptr<TokenStream>> slow;
    for (uint32_t i = 0; i < kAnswers; ++i)
        slow.push_back(submit(fixture_, {{TokenId(i), 9, 4}, kTokens, "slow", grammar(5, milliseconds(40))}));
    fixture_.run_until_idle();
    EXPECT_EQ(free->pop(milliseconds(0)).tokens, fake_continuation({77, 9, 4}, kNoAdapterSlot, 400));
    for (uint32_t i = 0; i < kAnswers; ++i) {
        TokenStream::Batch batch = slow[i]->pop(milliseconds(0));
        ASSERT_TRUE(batch.end && !batch.end->error) << (batch.end ? batch.end->error->message : "no end");
        auto alone = submit(fixture_, {{TokenId(i), 9, 4}, kTokens, "other", grammar(5, milliseconds(0))});
        fixture_.run_until_idle();
        EXPECT_EQ(batch.tokens, alone->pop(milliseconds(0)).tokens) << i;
    }
    EXPECT_EQ(fixture_.runner.n_broken(), 0u);
    EXPECT_EQ(fixture_.metrics.text({}).find("lorad_masks_late_total{model_name=\"base\"} 0\n"), std::string::npos);
}

TEST_P(LateMasks, WhoseFirstMaskTookLongIsNeverWaitedFor) {
    auto constraint = grammar(5, milliseconds(60));
    constraint->first_seconds = 0.06;
    expect_nobody_waits_for(constraint, *constraint);
}

TEST_P(LateMasks, WhoseFirstMaskTookLongIsNeverWaitedForWithBadWordsEither) {
    auto constraint = grammar(5, milliseconds(60));
    constraint->first_seconds = 0.06;
    auto sequences = std::make_shared<const BadWords::Sequences>(BadWords::Sequences{{5}});
    expect_nobody_waits_for(std::make_shared<BadWords>(sequences, kFakeVocab, constraint), *constraint);
}

// Its own answers wait for one another as ever: the next step's forward pass runs meanwhile.
TEST_P(LateMasks, WhoKeepsNobodyElseWaitingIsWaitedFor) {
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (uint32_t i = 0; i < 3; ++i) {
        auto constraint = grammar(5, milliseconds(6));
        constraint->first_seconds = 0.006;
        streams.push_back(submit(fixture_, {{TokenId(i), 9, 4}, 12, "one", constraint}));
    }
    fixture_.run_until_idle();
    for (auto& stream : streams) EXPECT_EQ(stream->pop(milliseconds(0)).tokens.size(), 12u);
    EXPECT_LE(fixture_.runner.n_steps(), 18u) << "none is in steps of its own";
}

TEST_P(LateMasks, ACancelOrAStopDoesNotWaitForAMask) {
    auto free = submit(fixture_, {{77, 9, 4}, 60, "free", nullptr});
    auto slow = submit(fixture_, {{1, 9, 4}, 60, "slow", grammar(5, milliseconds(300))});
    for (int i = 0; i < 10; ++i) fixture_.engine.step();
    slow->cancel(FinishReason::kCancelled);
    const auto begin = Clock::now();
    fixture_.run_until_idle();
    EXPECT_LT(Clock::now() - begin, milliseconds(290));
    EXPECT_EQ(slow->pop(milliseconds(0)).end->reason, FinishReason::kCancelled);
    EXPECT_EQ(free->pop(milliseconds(0)).tokens, fake_continuation({77, 9, 4}, kNoAdapterSlot, 60));
    auto other = submit(fixture_, {{2, 9, 4}, 60, "slow", grammar(5, milliseconds(300))});
    fixture_.engine.start();
    ASSERT_TRUE(lorad::testing::soon([&] { return fixture_.runner.n_steps() > 0; }));
    fixture_.engine.drain(milliseconds(0));
    ASSERT_TRUE(other->pop(milliseconds(0)).end);
}

// A drain lets those that wait for masks alone get on.
TEST_P(LateMasks, ADrainWaitsForThoseWhoWaitForMasks) {
    auto one = submit(fixture_, {{1, 9, 4}, 5, "slow", grammar(5, milliseconds(60))});
    auto two = submit(fixture_, {{2, 9, 4}, 5, "slow", grammar(6, milliseconds(60))});
    fixture_.engine.start();
    fixture_.engine.drain(std::chrono::seconds(60));
    EXPECT_EQ(one->pop(milliseconds(0)).tokens.size(), 5u);
    EXPECT_EQ(two->pop(milliseconds(0)).tokens.size(), 5u);
}

INSTANTIATE_TEST_SUITE_P(Draws, LateMasks, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "OnDevice" : "OnHost"; });

TEST(MaskPool, AnotherTenantsQuickMaskDoesNotWaitForAFlood) {
    MaskPool pool(2, 2, [] {});
    std::vector<std::shared_ptr<MaskJob>> flood;
    for (int i = 0; i < 20; ++i) flood.push_back(pool.begin(grammar(1, milliseconds(100)), "flood", false));
    std::this_thread::sleep_for(milliseconds(20));
    auto other = pool.begin(grammar(2, milliseconds(0)), "other", false);
    EXPECT_TRUE(pool.wait(std::span(&other, 1), milliseconds(80))) << "a thread is kept for whoever has none";
    EXPECT_FALSE(pool.wait(flood, milliseconds(0)));
    const auto* begun = static_cast<HashConstraint*>(flood[19]->constraint.get());
    EXPECT_EQ(begun->n_masks, 0u);
    flood.clear();  // nobody wants them any more: the pool ends without making them
    const auto begin = Clock::now();
    other.reset();
    EXPECT_LT(Clock::now() - begin, milliseconds(500));
}

TEST(TimeDebts, WhatIsOwedIsForgottenSlowly) {
    access::TimeDebts budget({.forgotten_per_second = 0.01, .owed_max = 0.02});
    const Clock::time_point now = Clock::now();
    budget.charge("a", 0.015, now);
    EXPECT_FALSE(budget.is_over("a", now));
    budget.charge("a", 0.015, now);
    EXPECT_TRUE(budget.is_over("a", now));
    EXPECT_FALSE(budget.is_over("b", now));
    EXPECT_TRUE(budget.is_over("a", now + milliseconds(900)));
    EXPECT_FALSE(budget.is_over("a", now + milliseconds(1100)));
}

}  // namespace
}  // namespace lorad::server::late_masks_test
