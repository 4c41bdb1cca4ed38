#include "server/engine/step_times.h"

#include <gtest/gtest.h>

namespace lorad::server {
namespace {

constexpr double kQuiet = 0.010, kRow = 0.0001;

// Steps of a device that takes kQuiet and kRow for each row of a prompt; n_prompt of them to come.
double longest_step(StepTimes& times, uint32_t n_steps, double quiet = kQuiet, double row = kRow) {
    double longest = 0;
    for (uint32_t i = 0; i < n_steps; ++i) {
        uint32_t n = times.n_prefill_rows();
        double seconds = quiet + n * row;
        longest = std::max(longest, seconds);
        times.observe(n, seconds);
    }
    return longest;
}

TEST(StepTimes, FindsAChunkThatKeepsStepsWithinTheStretchAndUsesIt) {
    StepTimes times(16, 2048, 1.7);
    longest_step(times, 200);
    // 0.7 * 10 ms / 0.1 ms are 70 rows, 64 of them in whole sixteens.
    EXPECT_EQ(times.n_prefill_rows(), 64u);
    EXPECT_LE(longest_step(times, 1000), 1.7 * kQuiet * 1.0001);
}

TEST(StepTimes, LearnsThoughPromptsNeverEnd) {
    StepTimes times(64, 2048, 2.0);
    uint32_t n_without = 0;
    for (int i = 0; i < 100; ++i) {
        n_without += times.n_prefill_rows() == 0;
        times.observe(times.n_prefill_rows(), kQuiet + times.n_prefill_rows() * kRow);
    }
    EXPECT_GE(n_without, 1u);
    EXPECT_LE(n_without, 2u);
    EXPECT_EQ(times.n_prefill_rows(), 64u);
}

TEST(StepTimes, FollowsADeviceThatBecomesSlower) {
    StepTimes times(8, 4096, 2.0);
    longest_step(times, 300);
    EXPECT_EQ(times.n_prefill_rows(), 96u);
    longest_step(times, 600, kQuiet, kRow * 4);
    EXPECT_EQ(times.n_prefill_rows(), 24u);
}

TEST(StepTimes, ASlowFirstStepOfAShapeDoesNotShrinkTheChunk) {
    StepTimes times(16, 2048, 1.7);
    longest_step(times, 200);
    ASSERT_EQ(times.n_prefill_rows(), 64u);
    for (int i = 0; i < 200; ++i) {
        // Every fourth step is the first of its kind, and a pipeline is compiled for it.
        uint32_t n = times.n_prefill_rows();
        times.observe(n, kQuiet + n * kRow + (i % 4 == 0 ? 0.3 : 0.0));
        n = times.n_prefill_rows();
        ASSERT_TRUE(n == 64 || n == 0) << i;
    }
}

TEST(StepTimes, NeverLessThanABlockAndNeverMoreThanAStep) {
    StepTimes slow(64, 2048, 1.7);
    longest_step(slow, 300, 0.001, 0.01);
    EXPECT_EQ(slow.n_prefill_rows(), 64u);
    StepTimes fast(64, 512, 1.7);
    longest_step(fast, 300, 0.01, 1e-9);
    EXPECT_EQ(fast.n_prefill_rows(), 512u);
    // A step smaller than a block.
    StepTimes small(64, 16, 1.7);
    EXPECT_EQ(small.n_prefill_rows(), 64u);
}

}  // namespace
}  // namespace lorad::server
