// Grammars that take long: their own tokens come late, nobody else's.
#include <algorithm>
#include <atomic>
#include <optional>

#include <gtest/gtest.h>

#include "server/engine/bad_words.h"
#include "tests/server/engine_fixture.h"
#include "tests/server/hash_constraint.h"
#include "tests/support/gate.h"
#include "tests/support/prometheus.h"
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

// Its masks do not come before the gate is open.
std::shared_ptr<HashConstraint> grammar(uint64_t seed, lorad::testing::Gate& gate) {
    auto out = std::make_shared<HashConstraint>(kFakeVocab, seed);
    out->before_mask = [&gate] { gate.pass(); };
    return out;
}

class LateMasks : public ::testing::TestWithParam<bool> {
  protected:
    explicit LateMasks(milliseconds mask_wait = EngineOptions().mask_wait) : fixture_(options(mask_wait)) {
        fixture_.runner.spread_logits_ = true;
        fixture_.runner.step_time_ = std::chrono::microseconds(500);
    }
    void TearDown() override { gate_.set_closed(false); }
    static EngineOptions options(milliseconds mask_wait) {
        EngineOptions out;
        out.mask_wait = mask_wait;
        out.limits = {256, 40, model::kBlockTokens};
        out.n_kv_blocks = 200;
        out.n_waiting_max = 100;
        out.n_sampling_threads = 3;
        out.draws_on_device = GetParam();
        return out;
    }
    // Steps until the stream has ended; its tokens.
    std::vector<TokenId> tokens_of(TokenStream& stream) {
        std::vector<TokenId> tokens;
        for (bool ended = false; !ended;) {
            fixture_.engine.step();
            const TokenStream::Batch batch = stream.pop(milliseconds(0));
            ended = batch.end.has_value();
            tokens.insert(tokens.end(), batch.tokens.begin(), batch.tokens.end());
        }
        return tokens;
    }
    // How often a step has waited for a mask that did not come in time.
    double n_late() const {
        const std::string text = fixture_.metrics.text({});
        return lorad::testing::PrometheusText(text).samples().at("lorad_masks_late_total{model_name=\"base\"}");
    }

    // Of PatientMasks, where a wait would not end. `constraint` is `grammar` or around it.
    void expect_nobody_waits_for(std::shared_ptr<TokenConstraint> constraint, const HashConstraint& grammar) {
        auto free = submit(fixture_, {{77, 9, 4}, 100, "free", nullptr});
        for (int i = 0; i < 5; ++i) fixture_.engine.step();
        Request request;
        request.constraint = constraint;
        EXPECT_EQ(ChoiceState(request).mask_seconds(), grammar.first_seconds)
            << "so that the first mask is patient already";
        auto slow = submit(fixture_, {{1, 2, 3}, 3, "slow", std::move(constraint)});
        const uint64_t n_steps = fixture_.runner.n_steps();
        tokens_of(*free);
        EXPECT_GE(fixture_.runner.n_steps() - n_steps, 90u);
        EXPECT_LE(n_late(), 1) << "its prompt's row";
        gate_.set_closed(false);
        fixture_.run_until_idle();
        EXPECT_EQ(grammar.n_masks, 3u);
        EXPECT_EQ(slow->pop(milliseconds(0)).tokens.size(), 3u);
    }

    lorad::testing::Gate gate_{true};
    EngineFixture fixture_;
};

// Thirty answers whose masks do not come at all while another has all of its tokens: each is waited for once, while
// nobody knows yet that it is slow.
TEST_P(LateMasks, ThirtyAnswersWithASlowGrammarDelayNobodyElse) {
    auto free = submit(fixture_, {{77, 9, 4}, 300, "free", nullptr});
    for (int i = 0; i < 4; ++i) fixture_.engine.step();
    std::vector<std::shared_ptr<TokenStream>> slow;
    for (uint32_t i = 0; i < 30; ++i)
        slow.push_back(submit(fixture_, {{TokenId(i), 9, 4}, 50, "slow", grammar(5, gate_)}));
    EXPECT_EQ(tokens_of(*free), fake_continuation({77, 9, 4}, kNoAdapterSlot, 300));
    EXPECT_GT(n_late(), 0);
    EXPECT_LE(n_late(), 30);
    EXPECT_EQ(fixture_.runner.n_broken(), 0u);
    for (auto& stream : slow) stream->cancel(FinishReason::kCancelled);
    gate_.set_closed(false);
    fixture_.run_until_idle();
}

// It takes its first token when the other answer has ended. Nobody waits, and the last token is not told to the grammar
// at all.
TEST_P(LateMasks, AGrammarThatIsSlowToTakeATokenDelaysNobodyElse) {
    auto free = submit(fixture_, {{77, 9, 4}, 100, "free", nullptr});
    auto constraint = grammar(5, milliseconds(0));
    constraint->before_accept = [this] { gate_.pass(); };
    auto slow = submit(fixture_, {{1, 9, 4}, 3, "slow", constraint});
    const uint64_t n_steps = fixture_.runner.n_steps();
    EXPECT_EQ(tokens_of(*free), fake_continuation({77, 9, 4}, kNoAdapterSlot, 100));
    EXPECT_GE(fixture_.runner.n_steps() - n_steps, 98u);
    EXPECT_LE(n_late(), 2) << "its first mask, on a busy machine, and the one behind the token";
    gate_.set_closed(false);
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

// Whoever is waited for here is waited for until it comes, however busy the machine is.
class PatientMasks : public LateMasks {
  protected:
    PatientMasks() : LateMasks(std::chrono::hours(1)) {}
};

TEST_P(PatientMasks, WhoseFirstMaskTookLongIsNeverWaitedFor) {
    auto constraint = grammar(5, gate_);
    constraint->first_seconds = 0.06;
    expect_nobody_waits_for(constraint, *constraint);
}

TEST_P(PatientMasks, WhoseFirstMaskTookLongIsNeverWaitedForWithBadWordsEither) {
    auto constraint = grammar(5, gate_);
    constraint->first_seconds = 0.06;
    auto sequences = std::make_shared<const BadWords::Sequences>(BadWords::Sequences{{5}});
    expect_nobody_waits_for(std::make_shared<BadWords>(sequences, kFakeVocab, constraint), *constraint);
}

// Its own answers wait for one another as ever: the next step's forward pass runs meanwhile.
TEST_P(PatientMasks, WhoKeepsNobodyElseWaitingIsWaitedFor) {
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
    auto slow = submit(fixture_, {{1, 9, 4}, 60, "slow", grammar(5, gate_)});
    for (int i = 0; i < 10; ++i) fixture_.engine.step();
    slow->cancel(FinishReason::kCancelled);
    fixture_.run_until_idle();
    EXPECT_EQ(slow->pop(milliseconds(0)).end->reason, FinishReason::kCancelled);
    EXPECT_EQ(free->pop(milliseconds(0)).tokens, fake_continuation({77, 9, 4}, kNoAdapterSlot, 60));
    auto other = submit(fixture_, {{2, 9, 4}, 60, "slow", grammar(5, gate_)});
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

std::string where(const ::testing::TestParamInfo<bool>& on_device) { return on_device.param ? "OnDevice" : "OnHost"; }
INSTANTIATE_TEST_SUITE_P(Draws, LateMasks, ::testing::Bool(), where);
INSTANTIATE_TEST_SUITE_P(Draws, PatientMasks, ::testing::Bool(), where);

TEST(MaskPool, AnotherTenantsQuickMaskDoesNotWaitForAFlood) {
    lorad::testing::Gate gate(true);
    std::optional<MaskPool> pool(std::in_place, 2, 2, [] {});
    std::atomic<int> n_begun = 0;
    std::vector<std::shared_ptr<MaskJob>> flood;
    for (int i = 0; i < 20; ++i) {
        auto constraint = std::make_shared<HashConstraint>(kFakeVocab, 1);
        constraint->before_mask = [&] { ++n_begun, gate.pass(); };
        flood.push_back(pool->begin(constraint, "flood", false));
    }
    EXPECT_TRUE(lorad::testing::soon([&] { return n_begun == 1; }));
    auto other = pool->begin(grammar(2, milliseconds(0)), "other", false);
    EXPECT_TRUE(pool->wait(std::span(&other, 1), std::chrono::seconds(30))) << "a thread is kept for whoever has none";
    EXPECT_FALSE(pool->wait(flood, milliseconds(0)));
    flood.clear();  // nobody wants them any more: the pool ends without making them
    gate.set_closed(false);
    pool.reset();
    EXPECT_EQ(n_begun, 1);
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
