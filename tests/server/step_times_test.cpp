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

// Prompts that never end, of a device that takes `fixed` and `row` for each row; returns the rows of the last step.
uint32_t alone_after(StepTimes& times, uint32_t n_steps, double fixed, double row) {
    for (uint32_t i = 0; i < n_steps; ++i) {
        uint32_t n = times.n_rows_alone(0);
        times.observe_alone(n, 0, fixed + n * row);
    }
    return times.n_rows_alone(0);
}

TEST(StepTimes, AStepOfPromptsAloneTakesItsTimeAndNoLonger) {
    StepTimes slow(16, 2048, 1.7, 0.1);
    EXPECT_EQ(alone_after(slow, 50, 0.002, 0.001), 96u);
    // 17,000 rows/s: a step of 2,048 rows takes 120 ms.
    StepTimes fast(16, 8192, 1.7, 0.12);
    EXPECT_NEAR(alone_after(fast, 50, 0.0, 1.0 / 17000), 2040, 16);
    StepTimes limited(16, 1000, 1.7, 0.1);
    EXPECT_EQ(alone_after(limited, 50, 0.0, 1e-6), 1000u);
    StepTimes very_slow(16, 2048, 1.7, 0.1);
    EXPECT_EQ(alone_after(very_slow, 50, 0.0, 1.0), StepTimes::kAloneRowsMin);
}

TEST(StepTimes, ShortPromptsAloneDoNotSayWhatLongOnesTake) {
    StepTimes times(16, 2048, 1.7, 0.1);
    uint32_t n = alone_after(times, 50, 0.008, 0.00005);
    ASSERT_GE(n, 1800u);
    for (int i = 0; i < 100; ++i) times.observe_alone(20, 0, 0.008 + 20 * 0.00005);
    EXPECT_EQ(times.n_rows_alone(0), n);
}

TEST(StepTimes, AloneItRecoversFromASlowFirstStepOfAShape) {
    StepTimes times(16, 2048, 1.7, 0.1);
    times.observe_alone(times.n_rows_alone(0), 0, 3.0);
    EXPECT_EQ(times.n_rows_alone(0), StepTimes::kAloneRowsMin);
    EXPECT_GE(alone_after(times, 10, 0.008, 0.00005), 900u);
    EXPECT_GE(alone_after(times, 30, 0.008, 0.00005), 1800u);
}

TEST(StepTimes, RowsOfSeveralContextsAreCountedByWhatTheyCost) {
    StepTimes times(16, 2048, 1.7);
    EXPECT_EQ(times.n_equivalent(64, 0, 16000), 64.0) << "nothing is known yet";
    times.observe(0, 0, kQuiet);
    for (int i = 0; i < 20; ++i) {
        times.observe(32, 500, kQuiet + 32 * kRow);
        times.observe(32, 16000, kQuiet + 32 * kRow * 4);
    }
    EXPECT_NEAR(times.n_equivalent(64, 500, 16000), 16.0, 0.01);
    EXPECT_NEAR(times.n_equivalent(64, 16000, 16000), 64.0, 0.01);
}

}  // namespace
}  // namespace lorad::server
