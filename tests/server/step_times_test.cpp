#include "server/engine/step_times.h"

#include <gtest/gtest.h>

namespace lorad::server {
namespace {

constexpr double kQuiet = 0.010, kRow = 0.0001;

// Steps of a device that takes kQuiet and kRow for each row of a prompt; n_prompt of them to come.
double longest_step(StepTimes& times, uint32_t n_steps, double quiet = kQuiet, double row = kRow) {
    double longest = 0;
    for (uint32_t i = 0; i < n_steps; ++i) {
        uint32_t n = times.n_prefill_rows(0);
        double seconds = quiet + n * row;
        longest = std::max(longest, seconds);
        times.observe(n, 0, seconds);
    }
    return longest;
}

TEST(StepTimes, FindsAChunkThatKeepsStepsWithinTheStretchAndUsesIt) {
    StepTimes times(16, 2048, 1.7);
    longest_step(times, 200);
    // 0.7 * 10 ms / 0.1 ms are 70 rows, 64 of them in whole sixteens.
    EXPECT_EQ(times.n_prefill_rows(0), 64u);
    EXPECT_LE(longest_step(times, 1000), 1.7 * kQuiet * 1.0001);
}

TEST(StepTimes, LearnsThoughPromptsNeverEnd) {
    StepTimes times(64, 2048, 2.0);
    uint32_t n_without = 0;
    for (int i = 0; i < 100; ++i) {
        n_without += times.n_prefill_rows(0) == 0;
        times.observe(times.n_prefill_rows(0), 0, kQuiet + times.n_prefill_rows(0) * kRow);
    }
    EXPECT_GE(n_without, 1u);
    EXPECT_LE(n_without, 2u);
    EXPECT_EQ(times.n_prefill_rows(0), 64u);
}

TEST(StepTimes, FollowsADeviceThatBecomesSlower) {
    StepTimes times(8, 4096, 2.0);
    longest_step(times, 300);
    EXPECT_EQ(times.n_prefill_rows(0), 96u);
    longest_step(times, 600, kQuiet, kRow * 4);
    EXPECT_EQ(times.n_prefill_rows(0), 24u);
}

TEST(StepTimes, ASlowFirstStepOfAShapeDoesNotShrinkTheChunk) {
    StepTimes times(16, 2048, 1.7);
    longest_step(times, 200);
    ASSERT_EQ(times.n_prefill_rows(0), 64u);
    for (int i = 0; i < 200; ++i) {
        // Every fourth step is the first of its kind, and a pipeline is compiled for it.
        uint32_t n = times.n_prefill_rows(0);
        times.observe(n, 0, kQuiet + n * kRow + (i % 4 == 0 ? 0.3 : 0.0));
        n = times.n_prefill_rows(0);
        ASSERT_TRUE(n == 64 || n == 0) << i;
    }
}

TEST(StepTimes, RowsBehindALongContextAreFewer) {
    StepTimes times(1, 2048, 1.7);
    times.observe(0, 0, kQuiet);
    // Prompts of 16k tokens, one after the other, chunk by chunk.
    uint32_t n_longer = 0;
    for (int prompt = 0; prompt < 3; ++prompt) {
        for (uint32_t context = 0; context < 16384;) {
            const uint32_t n = std::max(times.n_prefill_rows(context), 1u);
            context += n;
            const double seconds = kQuiet + n * kRow * (1 + context / 4096.0);
            times.observe(n, context, seconds);
            if (prompt > 0 && seconds > 1.7 * kQuiet * 1.05) ++n_longer;
        }
        times.observe(0, 0, kQuiet);
    }
    // 7 ms over 0.1 ms times 1.2, 3 and 5: what the last rows of each class cost.
    EXPECT_NEAR(times.n_prefill_rows(0), 60, 5);
    EXPECT_NEAR(times.n_prefill_rows(5000), 23, 1);
    EXPECT_NEAR(times.n_prefill_rows(16000), 14, 1);
    EXPECT_EQ(n_longer, 0u);
}

TEST(StepTimes, AContextNeverSeenIsTakenForTheNextShorterOne) {
    StepTimes times(16, 2048, 1.7);
    longest_step(times, 200);
    EXPECT_EQ(times.n_prefill_rows(100000), 64u);
    for (int i = 0; i < 20; ++i) times.observe(16, 100000, kQuiet + 16 * kRow * 100);
    EXPECT_EQ(times.n_prefill_rows(100000), 16u);
    EXPECT_EQ(times.n_prefill_rows(3000), 64u);
}

TEST(StepTimes, NeverLessThanABlockAndNeverMoreThanAStep) {
    StepTimes slow(64, 2048, 1.7);
    longest_step(slow, 300, 0.001, 0.01);
    EXPECT_EQ(slow.n_prefill_rows(0), 64u);
    StepTimes fast(64, 512, 1.7);
    longest_step(fast, 300, 0.01, 1e-9);
    EXPECT_EQ(fast.n_prefill_rows(0), 512u);
    // A step smaller than a block.
    StepTimes small(64, 16, 1.7);
    EXPECT_EQ(small.n_prefill_rows(0), 64u);
}

}  // namespace
}  // namespace lorad::server
