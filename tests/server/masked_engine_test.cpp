// Grammars beside the device: who waits for whom, and what happens to a request whose grammar fails or is over.
#include <gtest/gtest.h>

#include "tests/server/engine_fixture.h"
#include "tests/server/hash_constraint.h"

namespace lorad::server::masked_engine_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

class MaskedEngine : public ::testing::Test {
  protected:
    MaskedEngine() : fixture_(options()) { fixture_.runner.spread_logits_ = true; }
    static EngineOptions options() {
        EngineOptions out;
        out.limits = {128, 8, model::kBlockTokens};
        out.n_kv_blocks = 64;
        out.n_waiting_max = 100;
        out.n_sampling_threads = 3;
        // A busy machine may stop the grammars' threads for as long as the default: no mask is late here.
        out.mask_wait = std::chrono::minutes(1);
        return out;
    }

    std::shared_ptr<TokenStream> submit(uint32_t index, uint32_t n_max, std::shared_ptr<TokenConstraint> constraint,
                                        std::vector<TokenId> ends = {}) {
        Request request;
        request.prompt = {TokenId(index), 9, 4};
        request.n_tokens_max = n_max;
        request.sampling.temperature = 0.0f;
        request.stop_tokens = std::move(ends);
        request.constraint = std::move(constraint);
        request.stream = std::make_shared<TokenStream>(n_max);
        auto stream = request.stream;
        EXPECT_TRUE(fixture_.engine.submit(std::move(request)).ok());
        return stream;
    }
    std::vector<TokenId> free_tokens(uint32_t index, uint32_t n) {
        return fake_continuation({TokenId(index), 9, 4}, kNoAdapterSlot, n);
    }

    EngineFixture fixture_;
};

TEST_F(MaskedEngine, ASlowGrammarKeepsNoRowFromItsTokens) {
    auto slow = std::make_shared<HashConstraint>(kFakeVocab, 5), fast = std::make_shared<HashConstraint>(kFakeVocab, 5);
    slow->delay = milliseconds(3);
    auto slowly = submit(1, 30, slow), free = submit(2, 40, nullptr);
    fixture_.run_until_idle();
    std::vector<TokenId> tokens = slowly->pop(milliseconds(0)).tokens;
    EXPECT_EQ(tokens.size(), 30u);
    EXPECT_EQ(free->pop(milliseconds(0)).tokens, free_tokens(2, 40));
    // Each step but the first begins before the mask of the one before was asked for.
    EXPECT_EQ(fixture_.runner.n_masked_steps(), 30u);
    EXPECT_EQ(fixture_.runner.n_masked_ahead(), 29u);
    EXPECT_EQ(slow->n_masks, 30u);
    auto again = submit(1, 30, fast);
    fixture_.run_until_idle();
    EXPECT_EQ(again->pop(milliseconds(0)).tokens, tokens);
}

TEST_F(MaskedEngine, AnEndThatComesWhileTheNextStepRunsAsksForNoMoreMasks) {
    auto ending = std::make_shared<HashConstraint>(kFakeVocab, 5, std::vector<TokenId>{996}, 6);
    auto going_on = std::make_shared<HashConstraint>(kFakeVocab, 7);
    auto short_one = submit(1, 50, ending, {996}), long_one = submit(2, 20, going_on);
    fixture_.run_until_idle();
    TokenStream::Batch batch = short_one->pop(milliseconds(0));
    ASSERT_TRUE(batch.end);
    EXPECT_EQ(batch.end->reason, FinishReason::kStop);
    EXPECT_EQ(batch.tokens.size(), 7u);
    EXPECT_EQ(batch.tokens.back(), 996);
    EXPECT_EQ(ending->n_masks, 7u);
    EXPECT_EQ(long_one->pop(milliseconds(0)).tokens.size(), 20u);
    EXPECT_EQ(fixture_.runner.n_broken(), 0u);
}

TEST_F(MaskedEngine, AGrammarThatFailsEndsItsOwnRequest) {
    auto broken = std::make_shared<HashConstraint>(kFakeVocab, 5),
         refusing = std::make_shared<HashConstraint>(kFakeVocab, 6);
    broken->fails_at_mask = 4;
    refusing->refuses_token = 3;
    auto first = submit(1, 30, broken), second = submit(2, 30, refusing), third = submit(3, 30, nullptr);
    auto fourth = submit(4, 30, std::make_shared<HashConstraint>(kFakeVocab, 8));
    fixture_.run_until_idle();
    TokenStream::Batch batch = first->pop(milliseconds(0));
    ASSERT_TRUE(batch.end && batch.end->error);
    EXPECT_EQ(batch.tokens.size(), 3u);
    batch = second->pop(milliseconds(0));
    ASSERT_TRUE(batch.end && batch.end->error);
    EXPECT_EQ(third->pop(milliseconds(0)).tokens, free_tokens(3, 30));
    batch = fourth->pop(milliseconds(0));
    EXPECT_FALSE(batch.end->error);
    EXPECT_EQ(batch.tokens.size(), 30u);
}

// The third mask cannot be made.
class Overloaded final : public TokenConstraint {
  public:
    Status next_mask(std::vector<uint32_t>& words) override {
        words.assign(model::mask_words(kFakeVocab), 0);
        if (++n_masks_ == 3) return make_error(ErrorCode::kOverloaded, "no memory for it", "regex");
        words[0] = ~0u;
        return ok_status();
    }
    Status accept(TokenId) override { return ok_status(); }
    Result<std::unique_ptr<TokenConstraint>> duplicate() const override {
        return std::unique_ptr<TokenConstraint>(std::make_unique<Overloaded>(*this));
    }

  private:
    uint32_t n_masks_ = 0;
};

TEST(MaskErrors, AreThoseOfTheRequest) {
    for (const bool on_device : {true, false}) {
        EngineFixture fixture(EngineOptions{.limits = {128, 8, model::kBlockTokens},
                                            .n_kv_blocks = 64,
                                            .n_waiting_max = 100,
                                            .draws_on_device = on_device});
        fixture.runner.spread_logits_ = true;
        Request request;
        request.prompt = {1, 9, 4};
        request.n_tokens_max = 30;
        request.sampling.temperature = 0.0f;
        request.constraint = std::make_shared<Overloaded>();
        request.stream = std::make_shared<TokenStream>(30);
        auto stream = request.stream;
        ASSERT_TRUE(fixture.engine.submit(std::move(request)).ok());
        fixture.run_until_idle();
        TokenStream::Batch batch = stream->pop(milliseconds(0));
        ASSERT_TRUE(batch.end && batch.end->error);
        EXPECT_EQ(batch.tokens.size(), 2u);
        EXPECT_EQ(batch.end->error->code, ErrorCode::kOverloaded);
        EXPECT_EQ(batch.end->error->message, "no memory for it");
        EXPECT_EQ(batch.end->error->param, "regex");
    }
}

TEST_F(MaskedEngine, ACancelledRequestLeavesTheStepsInFlightInOrder) {
    auto one = submit(1, 60, std::make_shared<HashConstraint>(kFakeVocab, 5));
    auto other = submit(2, 60, std::make_shared<HashConstraint>(kFakeVocab, 6));
    auto free = submit(3, 60, nullptr);
    for (int i = 0; i < 9; ++i) fixture_.engine.step();
    one->cancel(FinishReason::kCancelled);
    fixture_.run_until_idle();
    EXPECT_EQ(one->pop(milliseconds(0)).end->reason, FinishReason::kCancelled);
    EXPECT_EQ(other->pop(milliseconds(0)).tokens.size(), 60u);
    EXPECT_EQ(free->pop(milliseconds(0)).tokens, free_tokens(3, 60));
}

TEST_F(MaskedEngine, ALostDeviceOrAStopEndsEveryStreamWhateverIsInFlight) {
    for (uint32_t n_steps : {1u, 2u, 3u, 4u}) {
        EngineFixture fixture(64);
        Request request;
        request.prompt = {1, 2};
        request.n_tokens_max = 50;
        request.constraint = std::make_shared<HashConstraint>(kFakeVocab, 5);
        request.stream = std::make_shared<TokenStream>(50);
        auto stream = request.stream;
        ASSERT_TRUE(fixture.engine.submit(std::move(request)).ok());
        if (n_steps % 2 == 0) fixture.runner.fail_at_step_ = n_steps;
        for (uint32_t i = 0; i < n_steps; ++i) fixture.engine.step();
        fixture.engine.drain(milliseconds(0));
        if (n_steps % 2 != 0) continue;
        EXPECT_TRUE(fixture.engine.failed());
        ASSERT_TRUE(stream->pop(milliseconds(0)).end);
    }
}

TEST_F(MaskedEngine, StepsThatWaitedForGrammarsAreCounted) {
    submit(1, 10, std::make_shared<HashConstraint>(kFakeVocab, 5));
    fixture_.run_until_idle();
    std::string text = fixture_.metrics.text({});
    EXPECT_NE(text.find("lorad_masked_steps_total{model_name=\"base\"} 10\n"), std::string::npos) << text;
    EXPECT_NE(text.find("lorad_masked_steps_ahead_total{model_name=\"base\"} 9\n"), std::string::npos);
    EXPECT_NE(text.find("lorad_masked_steps_waited_total{model_name=\"base\"} 0\n"), std::string::npos);
}

}  // namespace
}  // namespace lorad::server::masked_engine_test
