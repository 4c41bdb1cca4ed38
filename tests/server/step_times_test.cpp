#include "server/engine/step_times.h"

#include <map>

#include <gtest/gtest.h>

#include "model/step/step_shape.h"

namespace lorad::server::step_times_test {
namespace {

constexpr double kQuiet = 0.010, kRow = 0.0001;
constexpr uint32_t kDecodes = 8, kBesideMin = 16;

StepTimes times_of(double stretch, uint32_t n_rows_max = 2048) {
    return StepTimes(RowSizes(model::buckets_up_to(n_rows_max), n_rows_max), kBesideMin, stretch);
}

// Steps of a device that takes kQuiet and kRow for each row of a prompt; n_prompt of them to come.
double longest_step(StepTimes& times, uint32_t n_steps, double quiet = kQuiet, double row = kRow,
                    uint32_t context = 0) {
    double longest = 0;
    for (uint32_t i = 0; i < n_steps; ++i) {
        const uint32_t n = times.n_rows_beside(kDecodes, context);
        const double seconds = quiet + n * row;
        longest = std::max(longest, seconds);
        times.observe(kDecodes + n, {n, context, context}, seconds);
    }
    return longest;
}

TEST(StepTimes, FindsTheLargestFullStepWithinTheStretchAndUsesIt) {
    StepTimes times = times_of(1.7);
    longest_step(times, 200);
    // 0.7 * 10 ms / 0.1 ms are 70 rows: 56 fill a step of 64, 88 one of 96.
    EXPECT_EQ(times.n_rows_beside(kDecodes, 0), 56u);
    EXPECT_LE(longest_step(times, StepTimes::kTrialEvery / 2), 1.7 * kQuiet * 1.0001);
}

TEST(StepTimes, TriesTheNextLargerSizeOnceInAWhileAndFindsAFasterDevice) {
    StepTimes times = times_of(1.7);
    longest_step(times, 200);
    uint32_t n_longer = 0;
    for (uint32_t i = 0; i < 4 * StepTimes::kTrialEvery; ++i)
        n_longer += longest_step(times, 1) > 1.7 * kQuiet * 1.0001;
    EXPECT_GE(n_longer, 3u);
    EXPECT_LE(n_longer, 5u);
    // One trial of each size shows that what was too slow is not any more.
    longest_step(times, 3 * StepTimes::kTrialEvery, kQuiet, kRow / 2);
    EXPECT_EQ(times.n_rows_beside(kDecodes, 0), 120u);
}

TEST(StepTimes, LearnsThoughPromptsNeverEnd) {
    StepTimes times = times_of(2.0);
    uint32_t n_without = 0;
    for (int i = 0; i < 100; ++i) {
        const uint32_t n = times.n_rows_beside(kDecodes, 0);
        n_without += n == 0;
        times.observe(kDecodes + n, {n, 0, 0}, kQuiet + n * kRow);
    }
    EXPECT_GE(n_without, 3u) << "one alone may be slow for no reason";
    EXPECT_LE(n_without, 4u);
    EXPECT_EQ(times.n_rows_beside(kDecodes, 0), 88u);
}

TEST(StepTimes, FollowsADeviceThatBecomesSlower) {
    StepTimes times = times_of(2.0);
    longest_step(times, 300);
    EXPECT_EQ(times.n_rows_beside(kDecodes, 0), 88u);
    longest_step(times, 600, kQuiet, kRow * 4);
    EXPECT_EQ(times.n_rows_beside(kDecodes, 0), 24u);
}

TEST(StepTimes, ASlowFirstStepOfAShapeDoesNotShrinkTheChunk) {
    StepTimes times = times_of(1.7);
    longest_step(times, 200);
    ASSERT_EQ(times.n_rows_beside(kDecodes, 0), 56u);
    for (int i = 0; i < 200; ++i) {
        // Every fourth step is the first of its kind, and a pipeline is compiled for it.
        const uint32_t n = times.n_rows_beside(kDecodes, 0);
        times.observe(kDecodes + n, {n, 0, 0}, kQuiet + n * kRow + (i % 4 == 0 ? 0.3 : 0.0));
        const uint32_t next = times.n_rows_beside(kDecodes, 0);
        ASSERT_TRUE(next == 56 || next == 0) << i;
    }
}

TEST(StepTimes, ASlowFirstStepOfASizeDoesNotRuleItOut) {
    StepTimes times = times_of(1.7);
    times.observe(kDecodes, {0, 0, 0}, kQuiet);
    std::map<uint32_t, uint32_t> n_seen;
    for (int i = 0; i < 100; ++i) {
        const uint32_t n = times.n_rows_beside(kDecodes, 0);
        times.observe(kDecodes + n, {n, 0, 0}, kQuiet + n * kRow + (n_seen[n]++ == 0 ? 0.3 : 0.0));
    }
    EXPECT_EQ(times.n_rows_beside(kDecodes, 0), 56u);
}

TEST(StepTimes, RowsBehindALongContextAreFewer) {
    StepTimes times(RowSizes(model::buckets_up_to(2048), 2048), 8, 1.7);
    times.observe(kDecodes, {0, 0, 0}, kQuiet);
    // Prompts of 16k tokens, one after the other, chunk by chunk.
    uint32_t n_steps = 0, n_longer = 0;
    for (int prompt = 0; prompt < 4; ++prompt) {
        for (uint32_t context = 0; context < 16384;) {
            const uint32_t n = times.n_rows_beside(kDecodes, context), begin = context;
            if (n == 0) {
                times.observe(kDecodes, {0, 0, 0}, kQuiet);
                continue;
            }
            context += n;
            const double seconds = kQuiet + n * kRow * (1 + context / 4096.0);
            times.observe(kDecodes + n, {n, begin, begin}, seconds);
            if (prompt > 1) ++n_steps, n_longer += seconds > 1.7 * kQuiet * 1.05;
        }
        times.observe(kDecodes, {0, 0, 0}, kQuiet);
    }
    // 7 ms over 0.1 ms times what a row of each class costs, 1 to 1.2, 2 to 3 and 3 to 5 of it: at most 70, 35 and 23
    // rows, at least 58, 23 and 14.
    longest_step(times, 8);  // among them what is tried again
    EXPECT_EQ(times.n_rows_beside(kDecodes, 0), 56u);
    EXPECT_LE(times.n_rows_beside(kDecodes, 5000), 24u);
    EXPECT_GE(times.n_rows_beside(kDecodes, 5000), 16u);
    EXPECT_LE(times.n_rows_beside(kDecodes, 16000), 16u);
    EXPECT_LT(n_longer, n_steps / 100);
}

TEST(StepTimes, AContextNeverSeenIsTakenForTheNextShorterOne) {
    StepTimes times = times_of(1.7);
    longest_step(times, 200);
    EXPECT_EQ(times.n_rows_beside(kDecodes, 100000), 56u);
    longest_step(times, 40, kQuiet, kRow * 100, 100000);
    EXPECT_EQ(times.n_rows_beside(kDecodes, 100000), 16u);
    EXPECT_EQ(times.n_rows_beside(kDecodes, 3000), 56u);
}

TEST(StepTimes, NeverLessThanTheLeastAndNeverMoreThanAStep) {
    StepTimes slow = times_of(1.7);
    longest_step(slow, 300, 0.001, 0.01);
    EXPECT_EQ(slow.n_rows_beside(kDecodes, 0), 16u);
    EXPECT_EQ(slow.n_rows_beside(90, 0), 38u) << "what fills the smallest step with as many";
    EXPECT_EQ(slow.n_rows_beside(241, 0), 15u) << "nearly as many";
    for (uint32_t n_decodes = 1; n_decodes < 500; ++n_decodes)
        EXPECT_GE(slow.n_rows_beside(n_decodes, 0), 14u) << n_decodes;
    StepTimes fast = times_of(1.7, 512);
    longest_step(fast, 300, 0.01, 1e-9);
    EXPECT_EQ(fast.n_rows_beside(kDecodes, 0), 504u);
}

// Seconds of a step on a device that computes only full ones (an H200, a 7B model and eight adapters).
double seconds_of(uint32_t n_rows) {
    static const std::map<uint32_t, double> kSeconds = {{48, 7.0e-3},   {64, 7.5e-3},   {96, 9.0e-3},
                                                        {128, 10.1e-3}, {192, 13.7e-3}, {256, 15.0e-3}};
    return kSeconds.lower_bound(n_rows)->second;
}

// By the row, a small step costs more than a large one: 55 us in 64 rows, 42 in 128. Whoever takes the one for the
// other stays with small ones.
TEST(StepTimes, WhatASmallStepCostsByTheRowDoesNotKeepItFromGrowing) {
    StepTimes times = times_of(1.8, 256);
    const auto settle = [&](uint32_t n_decodes, double quiet, int n_steps) {
        for (int i = 0; i < 20; ++i) times.observe(n_decodes, {0, 0, 0}, quiet);
        uint32_t n_full = 0;
        for (int i = 0; i < n_steps; ++i) {
            const uint32_t n = times.n_rows_beside(n_decodes, 0);
            // Every eighth step the prompts end before the step is full.
            const uint32_t n_taken = i % 8 == 0 ? n / 2 : n, total = n_decodes + n_taken;
            times.observe(total, {n_taken, 0, 0}, n_taken == 0 ? quiet : seconds_of(total));
            if (n + n_decodes == 128) ++n_full;
        }
        return n_full;
    };
    settle(20, 5.3e-3, 40);
    EXPECT_EQ(times.n_rows_beside(20, 0), 76u) << "9.0 of 9.5 ms";
    EXPECT_GT(settle(30, 6.2e-3, 2 * StepTimes::kTrialEvery), StepTimes::kTrialEvery / 2);
    EXPECT_EQ(times.n_rows_beside(30, 0), 98u) << "10.1 of 11.2 ms";
}

// Prompts that end before the step is full say that it takes too long, too.
TEST(StepTimes, StepsThatAreNeverFullAreLearnedFrom) {
    StepTimes times = times_of(1.8);
    times.observe(kDecodes, {}, 5e-3);
    uint32_t n_slow = 0;
    for (int i = 0; i < 5000; ++i) {
        const uint32_t n = std::min(times.n_rows_beside(kDecodes, 0), 50u), total = kDecodes + n;
        const double seconds = n == 0 ? 5e-3 : total <= 48 ? 6e-3 : 20e-3;
        times.observe(total, {n, 0, 0}, seconds);
        n_slow += seconds > 9e-3;
    }
    EXPECT_LT(n_slow, 5000 * 8 / StepTimes::kTrialEvery);
}

// One step in twenty takes three times as long, for no reason. Prompts that end early neither rule a size out by such
// steps nor keep it from being tried again.
TEST(StepTimes, NoiseDoesNotRuleOutWhatIsNeverFull) {
    StepTimes times = times_of(1.8);
    times.observe(kDecodes, {}, 5e-3);
    uint64_t n_rows = 0;
    for (int i = 0; i < 5000; ++i) {
        const uint32_t n = std::min(times.n_rows_beside(kDecodes, 0), 30u);
        n_rows += n;
        times.observe(kDecodes + n, {n, 0, 0}, (n == 0 ? 5e-3 : 6e-3) * (i % 20 == 7 ? 3 : 1));
    }
    EXPECT_GT(n_rows, 5000 * 29u);
}

TEST(StepTimes, NoiseDoesNotKeepASizeFromBeingTriedAgain) {
    StepTimes times = times_of(1.8, 128);
    const auto run = [&](int n_steps, double seconds_of_128) {
        for (int i = 0; i < n_steps; ++i) {
            const uint32_t n = times.n_rows_beside(90, 0);
            times.observe(90 + n, {n, 0, 0}, (n == 0 ? 5e-3 : seconds_of_128) * (i % 20 == 7 ? 3 : 1));
        }
    };
    run(2000, 12e-3);
    EXPECT_EQ(times.n_rows_beside(90, 0), kBesideMin);
    run(2 * StepTimes::kTrialEvery, 8e-3);
    EXPECT_EQ(times.n_rows_beside(90, 0), 38u);
}

TEST(StepTimes, FollowsWhatStepsTakeWithoutPromptsThoughPromptsNeverEnd) {
    StepTimes times = times_of(1.8);
    const auto n_slow_of = [&](int n_steps, double quiet) {
        uint32_t n_slow = 0;
        for (int i = 0; i < n_steps; ++i) {
            const uint32_t n = times.n_rows_beside(20, 0);
            const double seconds = n == 0 ? quiet : seconds_of(20 + n);
            times.observe(20 + n, {n, 0, 0}, seconds);
            n_slow += n > 0 && seconds > 1.8 * quiet;
        }
        return n_slow;
    };
    n_slow_of(3000, 7e-3);
    EXPECT_EQ(times.n_rows_beside(20, 0), 108u) << "10.1 of 12.6 ms";
    // 256 until the first step without prompts, then 8 of them, and none in 15 quicker ones.
    EXPECT_LT(n_slow_of(3000, 5.3e-3), 256u + 8 * 16);
    EXPECT_EQ(times.n_rows_beside(20, 0), 76u) << "9.0 of 9.5 ms";
}

// Sixty clients that come at once: few of them decode without prompts, when the first are served, and all of them
// beside prompts.
TEST(StepTimes, WhatAStepTakesWithoutPromptsIsKnownByItsDecodes) {
    StepTimes times = times_of(1.8);
    for (int i = 0; i < 20; ++i) times.observe(4, {}, 4.2e-3);
    const auto run = [&](uint32_t n_decodes, double quiet, int n_steps) {
        for (int i = 0; i < n_steps; ++i) {
            const uint32_t n = times.n_rows_beside(n_decodes, 0), total = n_decodes + n;
            times.observe(total, {n, 0, 0},
                          n == 0         ? quiet
                          : total <= 64  ? 6.2e-3
                          : total <= 96  ? 8.1e-3
                          : total <= 128 ? 8.8e-3
                                         : 12e-3);
        }
    };
    run(60, 5.9e-3, 32);
    EXPECT_EQ(times.n_rows_beside(60, 0), 68u) << "8.8 of 10.6 ms";
    run(4, 4.2e-3, 40);
    EXPECT_EQ(times.n_rows_beside(4, 0), 60u) << "6.2 of 7.6 ms";
    // The bound is never below what the last steps without prompts took, whatever their decodes: here those of sixty.
    for (int i = 0; i < 20; ++i) times.observe(60, {}, 5.9e-3);
    run(4, 4.2e-3, 40);
    EXPECT_EQ(times.n_rows_beside(4, 0), 124u) << "8.8 of 10.6 ms";
    // What sixty took long ago counts no more.
    for (int i = 0; i < 620; ++i) times.observe(4, {}, 3.5e-3);
    EXPECT_LE(times.n_rows_beside(60, 0), 36u) << "8.1 and 8.8 of 6.3 ms";
    run(60, 5.9e-3, 32);
    EXPECT_EQ(times.n_rows_beside(60, 0), 68u) << "seen again";
}

// Steps of some numbers of decodes without prompts are few, and one of them may take long for no reason.
TEST(StepTimes, OneSlowStepWithoutPromptsSaysNothing) {
    StepTimes times = times_of(1.7);
    longest_step(times, 200);
    for (const uint32_t n_decodes : {1u, 6u, kDecodes}) times.observe(n_decodes, {}, 0.3);
    times.observe(6, {}, kQuiet);
    EXPECT_LE(longest_step(times, StepTimes::kTrialEvery / 2), 1.7 * kQuiet * 1.0001);
    EXPECT_EQ(times.n_rows_beside(kDecodes, 0), 56u);
}

TEST(StepTimes, ManyClassesOfContextsAreNotTriedAgainAtOnce) {
    StepTimes times = times_of(1.8);
    uint32_t n_slow = 0;
    constexpr uint32_t kContexts[] = {0, 1500, 3000, 6000, 12000}, kSteps = 20000;
    for (uint32_t i = 0; i < kSteps; ++i) {
        const uint32_t context = kContexts[i % 5], n = times.n_rows_beside(kDecodes, context);
        const double seconds = n == 0 ? 5e-3 : kDecodes + n <= 96 ? 8e-3 : 12e-3;
        times.observe(kDecodes + n, {n, context, context}, seconds);
        n_slow += i > 500 && seconds > 9e-3;
    }
    EXPECT_GT(n_slow, kSteps / StepTimes::kTrialEvery);
    EXPECT_LT(n_slow, kSteps * 5 / 2 / StepTimes::kTrialEvery);
}

TEST(StepTimes, AVerdictOnShorterContextsIsTriedAgainByLongerOnes) {
    StepTimes times = times_of(1.7);
    longest_step(times, 30000, kQuiet, kRow * 4);
    EXPECT_EQ(times.n_rows_beside(kDecodes, 3000), 16u);
    longest_step(times, 2 * StepTimes::kTrialEvery, kQuiet, kRow, 3000);
    EXPECT_GE(times.n_rows_beside(kDecodes, 3000), 40u);
}

TEST(StepTimes, WhatFitsIsNotFoundAgainSizeBySizeWhenDecodesBecomeFewer) {
    StepTimes times = times_of(1.8, 256);
    for (int i = 0; i < 100; ++i) {
        const uint32_t n = times.n_rows_beside(120, 0);
        times.observe(120 + n, {n, 0, 0}, n == 0 ? 10e-3 : 15e-3);
    }
    ASSERT_EQ(times.n_rows_beside(120, 0), 136u);
    EXPECT_EQ(times.n_rows_beside(kDecodes, 0), 248u);
}

TEST(StepTimes, WhatFitsALongContextFitsAShortOne) {
    StepTimes times = times_of(1.7);
    longest_step(times, 200, kQuiet, kRow, 5000);
    EXPECT_EQ(times.n_rows_beside(kDecodes, 5000), 56u);
    EXPECT_GE(times.n_rows_beside(kDecodes, 0), 56u);
}

TEST(StepTimes, AStepMayHaveAllItsRows) {
    StepTimes times = times_of(1.7, 1000);
    longest_step(times, 300, kQuiet, 1e-9);
    EXPECT_EQ(times.n_rows_beside(kDecodes, 0), 992u);
    StepTimes one = times_of(1.7, 1);
    longest_step(one, 100);
    EXPECT_EQ(one.n_rows_alone(0), 1u);
}

// Prompts that never give a step without any (with log-probabilities of each token they have a row in each step) hold
// up no other prompt.
TEST(StepTimes, StepsWithoutPromptsAreAskedForNowAndThenOnly) {
    StepTimes times = times_of(1.7);
    longest_step(times, 200);
    uint32_t n_none = 0;
    for (int i = 0; i < 2000; ++i) {
        n_none += times.n_rows_beside(kDecodes, 0) == 0;
        times.observe(kDecodes + 1, {1, 0, 0}, kQuiet);
    }
    EXPECT_GE(n_none, 5u);
    EXPECT_LE(n_none, 9u);
}

// Prompts that never end, of a device that takes `fixed` and `row` for each row; returns the rows of the last step.
uint32_t alone_after(StepTimes& times, uint32_t n_steps, double fixed, double row) {
    for (uint32_t i = 0; i < n_steps; ++i) {
        uint32_t n = times.n_rows_alone(0);
        times.observe_alone(n, 0, fixed + n * row);
    }
    return times.n_rows_alone(0);
}

StepTimes alone_times(uint32_t n_rows_max, double alone_s) {
    return StepTimes(RowSizes(model::buckets_up_to(n_rows_max), n_rows_max), kBesideMin, 1.7, alone_s);
}

TEST(StepTimes, AStepOfPromptsAloneTakesItsTimeAndNoLonger) {
    StepTimes slow = alone_times(2048, 0.1);
    EXPECT_EQ(alone_after(slow, 50, 0.002, 0.001), 96u);
    // 17,500 rows/s: a step of 2,048 rows takes 117 ms.
    StepTimes fast = alone_times(8192, 0.12);
    EXPECT_EQ(alone_after(fast, 50, 0.0, 1.0 / 17500), 2048u);
    StepTimes limited = alone_times(1000, 0.1);
    EXPECT_EQ(alone_after(limited, 50, 0.0, 1e-6), 1000u);
    StepTimes very_slow = alone_times(2048, 0.1);
    EXPECT_EQ(alone_after(very_slow, 50, 0.0, 1.0), StepTimes::kAloneRowsMin);
}

TEST(StepTimes, ShortPromptsAloneDoNotSayWhatLongOnesTake) {
    StepTimes times = alone_times(2048, 0.1);
    uint32_t n = alone_after(times, 50, 0.008, 0.00005);
    ASSERT_GE(n, 1500u);
    for (int i = 0; i < 100; ++i) times.observe_alone(20, 0, 0.008 + 20 * 0.00005);
    EXPECT_EQ(times.n_rows_alone(0), n);
}

TEST(StepTimes, AloneItRecoversFromASlowFirstStepOfAShape) {
    StepTimes times = alone_times(2048, 0.1);
    times.observe_alone(times.n_rows_alone(0), 0, 3.0);
    EXPECT_EQ(times.n_rows_alone(0), StepTimes::kAloneRowsMin);
    EXPECT_GE(alone_after(times, 10, 0.008, 0.00005), 768u);
    EXPECT_GE(alone_after(times, 30, 0.008, 0.00005), 1536u);
}

TEST(StepTimes, RowsOfSeveralContextsAreCountedByWhatTheyCost) {
    StepTimes times = alone_times(2048, 0.1);
    EXPECT_EQ(times.n_equivalent(64, 0, 16000), 64.0) << "nothing is known yet";
    for (int i = 0; i < 20; ++i) {
        times.observe_alone(1024, 500, 1024 * kRow);
        times.observe_alone(1024, 16000, 1024 * kRow * 4);
    }
    EXPECT_NEAR(times.n_equivalent(64, 500, 16000), 16.0, 0.01);
    EXPECT_NEAR(times.n_equivalent(64, 16000, 16000), 64.0, 0.01);
}

}  // namespace
}  // namespace lorad::server::step_times_test
