#include "server/engine/scheduler.h"

#include <numeric>
#include <random>
#include <set>

#include <gtest/gtest.h>

namespace lorad::server::scheduler_test {
namespace {

constexpr SchedulerLimits kLimits{.n_rows_max = 256, .n_sequences_max = 8, .block_tokens = 64};

uint32_t n_rows_of(const StepPlan& plan) {
    return std::accumulate(plan.rows.begin(), plan.rows.end(), 0u,
                           [](uint32_t sum, const PlannedRows& rows) { return sum + rows.n_rows; });
}

TEST(Scheduler, AdmitsAWaitingSequenceWithItsWholePromptWhenItFits) {
    std::vector<SequenceView> waiting{{100, 0, 0}};
    StepPlan plan = plan_step({}, waiting, 10, kLimits);
    ASSERT_EQ(plan.rows.size(), 1u);
    EXPECT_EQ(plan.n_admitted, 1u);
    EXPECT_EQ(plan.rows[0].n_rows, 100u);
    EXPECT_EQ(plan.rows[0].n_new_blocks, 2u);
}

TEST(Scheduler, DecodesComeBeforePrefillChunks) {
    std::vector<SequenceView> running{{1000, 0, 0}, {65, 64, 1}, {130, 129, 3}};
    StepPlan plan = plan_step(running, {}, 100, kLimits);
    ASSERT_EQ(plan.rows.size(), 3u);
    EXPECT_EQ(plan.rows[0].index, 1u);
    EXPECT_EQ(plan.rows[0].n_new_blocks, 1u);
    EXPECT_EQ(plan.rows[1].index, 2u);
    EXPECT_EQ(plan.rows[1].n_new_blocks, 0u);
    EXPECT_EQ(plan.rows[2].index, 0u);
    EXPECT_EQ(plan.rows[2].n_rows, 254u);  // what the two decodes leave of the budget
}

TEST(Scheduler, NeverPlansMoreRowsThanAStepMayHave) {
    std::vector<SequenceView> waiting{{200, 0, 0}, {200, 0, 0}, {200, 0, 0}};
    StepPlan plan = plan_step({}, waiting, 100, kLimits);
    EXPECT_EQ(n_rows_of(plan), 256u);
    EXPECT_EQ(plan.n_admitted, 2u);
}

TEST(Scheduler, DoesNotAdmitWhatTheFreeBlocksCannotHold) {
    std::vector<SequenceView> waiting{{300, 0, 0}, {10, 0, 0}};
    StepPlan plan = plan_step({}, waiting, 4, kLimits);
    EXPECT_EQ(plan.n_admitted, 0u) << "a later short prompt must not overtake an earlier long one";
}

TEST(Scheduler, KeepsBlocksForTheRestOfARunningPrefill) {
    // The running one has computed 64 of 512 tokens and needs 7 more blocks, 4 of them in this
    // step.
    std::vector<SequenceView> running{{512, 64, 1}};
    std::vector<SequenceView> waiting{{10, 0, 0}};
    StepPlan plan = plan_step(running, waiting, 7, {.n_rows_max = 300, .n_sequences_max = 8, .block_tokens = 64});
    EXPECT_EQ(plan.n_admitted, 0u);
    plan = plan_step(running, waiting, 8, {.n_rows_max = 500, .n_sequences_max = 8, .block_tokens = 64});
    EXPECT_EQ(plan.n_admitted, 1u);
}

TEST(Scheduler, PreemptsTheYoungestForTheOldest) {
    std::vector<SequenceView> running{{65, 64, 1}, {65, 64, 1}, {40, 39, 1}};
    StepPlan plan = plan_step(running, {}, 0, kLimits);
    // The oldest takes the block of the youngest; the second finds no younger one left and waits.
    ASSERT_EQ(plan.preempted, (std::vector<uint32_t>{2}));
    ASSERT_EQ(plan.rows.size(), 1u);
    EXPECT_EQ(plan.rows[0].index, 0u);
    EXPECT_EQ(plan.rows[0].n_new_blocks, 1u);
}

TEST(Scheduler, ASequenceNeverTakesBlocksFromAnOlderOne) {
    std::vector<SequenceView> running{{40, 39, 1}, {65, 64, 1}};
    StepPlan plan = plan_step(running, {}, 0, kLimits);
    EXPECT_TRUE(plan.preempted.empty());
    ASSERT_EQ(plan.rows.size(), 1u);
    EXPECT_EQ(plan.rows[0].index, 0u);
}

TEST(Scheduler, APreemptedSequenceHasNoRowsInThatStep) {
    // The prefill is the oldest: it takes back what the decode of this very step was given.
    std::vector<SequenceView> running{{192, 64, 1}, {65, 64, 1}};
    StepPlan plan = plan_step(running, {}, 1, kLimits);
    ASSERT_EQ(plan.preempted, (std::vector<uint32_t>{1}));
    ASSERT_EQ(plan.rows.size(), 1u);
    EXPECT_EQ(plan.rows[0].index, 0u);
    EXPECT_EQ(plan.rows[0].n_rows, 128u);
    EXPECT_EQ(plan.rows[0].n_new_blocks, 2u);
}

TEST(Scheduler, AdmitsNobodyInAStepThatPreempts) {
    std::vector<SequenceView> running{{65, 64, 1}, {200, 199, 4}};
    std::vector<SequenceView> waiting{{10, 0, 0}};
    StepPlan plan = plan_step(running, waiting, 0, kLimits);
    EXPECT_EQ(plan.preempted.size(), 1u);
    EXPECT_EQ(plan.n_admitted, 0u);
}

TEST(Scheduler, KeepsToTheNumberOfSequences) {
    std::vector<SequenceView> running(7, SequenceView{10, 9, 1});
    std::vector<SequenceView> waiting(5, SequenceView{10, 0, 0});
    EXPECT_EQ(plan_step(running, waiting, 100, kLimits).n_admitted, 1u);
}

TEST(Scheduler, ACachedPrefixNeedsNeitherRowsNorNewBlocks) {
    // Four of six blocks are there, three of them held by others already.
    std::vector<SequenceView> waiting{{340, 256, 4, 1}};
    StepPlan plan = plan_step({}, waiting, 3, kLimits);
    ASSERT_EQ(plan.n_admitted, 1u);
    EXPECT_EQ(plan.rows[0].n_rows, 84u);
    EXPECT_EQ(plan.rows[0].n_new_blocks, 2u);
    EXPECT_EQ(plan_step({}, waiting, 2, kLimits).n_admitted, 0u) << "the idle one counts as free until it is held";
}

TEST(Scheduler, BlocksThatOthersHoldAreNotFreedByAPreemption) {
    std::vector<BlockId> oldest{0}, second{1, 2}, third{1, 3};
    std::vector<SequenceView> running{{65, 64, 1, 0, oldest}, {128, 127, 2, 0, second}, {128, 127, 2, 0, third}};
    std::vector<uint32_t> n_holders{1, 2, 1, 1};
    StepPlan plan = plan_step(running, {}, 0, kLimits, n_holders);
    EXPECT_EQ(plan.preempted, (std::vector<uint32_t>{2})) << "block 3 is the third's alone";
    // The third's are all held by the second as well: only when both let go is one free.
    third = {1, 2};
    running[2].blocks = third;
    n_holders = {1, 2, 2};
    plan = plan_step(running, {}, 0, kLimits, n_holders);
    EXPECT_EQ(plan.preempted, (std::vector<uint32_t>{2, 1}));
    ASSERT_EQ(plan.rows.size(), 1u);
    EXPECT_EQ(plan.rows[0].n_new_blocks, 1u);
}

TEST(Scheduler, PromptsGetRowsInTheOrderOfTheirChunks) {
    // A long prompt is half computed; a short one that waits comes first.
    std::vector<SequenceView> running{{1000, 512, 8}};
    std::vector<SequenceView> waiting{{48, 0, 0}};
    std::vector<PromptChunk> chunks{{1, 48}, {0, 488}};
    StepPlan plan = plan_step(running, waiting, 100, kLimits, {}, chunks);
    EXPECT_EQ(plan.n_admitted, 1u);
    ASSERT_EQ(plan.rows.size(), 2u);
    EXPECT_EQ(plan.rows[0].index, 1u);
    EXPECT_EQ(plan.rows[0].n_rows, 48u);
    EXPECT_EQ(plan.rows[1].index, 0u);
    EXPECT_EQ(plan.rows[1].n_rows, 208u);
    EXPECT_EQ(plan.rows[1].n_new_blocks, 4u);
}

TEST(Scheduler, TurnsOfOneSequenceAddUp) {
    std::vector<SequenceView> running{{1000, 512, 8}};
    std::vector<SequenceView> waiting{{900, 0, 0}};
    std::vector<PromptChunk> chunks{{1, 64}, {0, 64}, {1, 64}, {0, 1000}};
    StepPlan plan = plan_step(running, waiting, 100, kLimits, {}, chunks);
    ASSERT_EQ(plan.rows.size(), 2u);
    EXPECT_EQ(plan.n_admitted, 1u);
    EXPECT_EQ(plan.rows[0].n_rows, 128u);
    EXPECT_EQ(plan.rows[0].n_new_blocks, 2u);
    EXPECT_EQ(plan.rows[1].n_rows, 128u);
    EXPECT_EQ(plan.rows[1].n_new_blocks, 2u);
}

TEST(Scheduler, WhatAWaitingOneCannotTakeIsLeftToThoseThatRun) {
    std::vector<SequenceView> running{{1000, 512, 8}};
    std::vector<SequenceView> waiting{{1000, 0, 0}};
    std::vector<PromptChunk> chunks{{1, 256}, {0, 488}};
    // The running one needs 8 more blocks, the waiting one 16.
    StepPlan plan = plan_step(running, waiting, 23, kLimits, {}, chunks);
    EXPECT_EQ(plan.n_admitted, 0u);
    ASSERT_EQ(plan.rows.size(), 1u);
    EXPECT_EQ(plan.rows[0].n_rows, 256u);
    EXPECT_EQ(plan_step(running, waiting, 24, kLimits, {}, chunks).n_admitted, 1u);
}

TEST(Scheduler, RowsOfPromptsAreLimitedBesideDecodesAndWithout) {
    std::vector<SequenceView> running{{1000, 512, 8}, {65, 64, 1}};
    running[0].n_rows_beside = 32;
    running[0].n_rows_alone = 128;
    EXPECT_EQ(n_rows_of(plan_step(running, {}, 100, kLimits)), 33u);
    running.pop_back();
    EXPECT_EQ(n_rows_of(plan_step(running, {}, 100, kLimits)), 128u);
    running[0].n_rows_beside = 0;
    running.push_back({65, 64, 1});
    EXPECT_EQ(n_rows_of(plan_step(running, {}, 100, kLimits)), 1u);
}

TEST(Scheduler, DearRowsTakeTheirShareOfTheStep) {
    // Rows behind the long context cost four times as much: what the first leaves is a quarter as many.
    std::vector<SequenceView> running{{48, 0, 0}, {9000, 8192, 128}};
    running[0].n_rows_alone = 128;
    running[1].n_rows_alone = 32;
    StepPlan plan = plan_step(running, {}, 100, kLimits);
    ASSERT_EQ(plan.rows.size(), 2u);
    EXPECT_EQ(plan.rows[0].n_rows, 48u);
    EXPECT_EQ(plan.rows[1].n_rows, 20u);
}

TEST(Scheduler, AStarvingOneGetsAPlaceThoughDecodesTakeAllRows) {
    std::vector<SequenceView> running(8, SequenceView{65, 64, 1});
    running[7].may_yield = true;
    std::vector<SequenceView> waiting{{48, 0, 0}};
    waiting[0].is_starving = true;
    StepPlan plan = plan_step(running, waiting, 100, {.n_rows_max = 8, .n_sequences_max = 8, .block_tokens = 64});
    EXPECT_TRUE(plan.has_yielded);
    EXPECT_EQ(plan.preempted, (std::vector<uint32_t>{7}));
    EXPECT_EQ(plan.n_admitted, 0u);
}

TEST(Scheduler, NobodyYieldsToOneThatOnlyWaitsForRows) {
    std::vector<SequenceView> running{{65, 64, 1}};
    running[0].may_yield = true;
    std::vector<SequenceView> waiting{{48, 0, 0}};
    waiting[0].is_starving = true;
    waiting[0].n_rows_beside = 0;  // a step without prompts, for its time
    StepPlan plan = plan_step(running, waiting, 100, kLimits);
    EXPECT_FALSE(plan.has_yielded);
    EXPECT_EQ(n_rows_of(plan), 1u);
}

// Any states and any turns: the plan keeps to rows, blocks, places and the order of admission, decodes have their rows
// where there are blocks, and no rows are left over that a running prompt could take.
TEST(SchedulerSimulation, PlansKeepToTheirLimits) {
    for (uint32_t seed = 0; seed < 20000; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 random(seed);
        SchedulerLimits limits{.n_rows_max = 8 + uint32_t(random() % 200),
                               .n_sequences_max = 1 + uint32_t(random() % 8),
                               .block_tokens = 16};
        std::vector<SequenceView> running, waiting;
        const uint32_t n_beside = random() % 100, n_alone = 1 + random() % 100;
        auto limit = [&](SequenceView& view) {
            if (seed % 2 == 0) return;
            view.n_rows_beside = n_beside;
            view.n_rows_alone = n_alone;
        };
        for (uint32_t n = random() % (limits.n_sequences_max + 1); n > 0; --n) {
            SequenceView view;
            view.n_computed = random() % 200;
            view.n_known = view.n_computed + (random() % 2 ? 1 : 1 + random() % 300);
            view.n_blocks = blocks_for(view.n_computed, 16);
            view.may_yield = random() % 4 == 0;
            limit(view);
            running.push_back(view);
        }
        for (uint32_t n = random() % 5; n > 0; --n) {
            SequenceView view;
            view.n_blocks = random() % 4;
            view.n_computed = view.n_blocks * 16;
            view.n_known = view.n_computed + 1 + random() % 300;
            limit(view);
            waiting.push_back(view);
        }
        if (!waiting.empty()) waiting[0].is_starving = random() % 4 == 0;
        std::vector<PromptChunk> chunks;
        for (uint32_t n = random() % 8; n > 0; --n) {
            uint32_t i = random() % uint32_t(running.size() + waiting.size() + 1);
            if (i < running.size() + waiting.size()) chunks.push_back({i, 1 + uint32_t(random() % 100)});
        }
        for (uint32_t i = 0; i < running.size(); ++i) chunks.push_back({i, 1000});
        const uint32_t n_free = random() % 40;
        StepPlan plan = plan_step(running, waiting, n_free, limits, {}, chunks);

        std::set<uint32_t> preempted(plan.preempted.begin(), plan.preempted.end()), planned;
        EXPECT_EQ(preempted.size(), plan.preempted.size());
        EXPECT_LE(n_rows_of(plan), limits.n_rows_max);
        EXPECT_LE(running.size() - preempted.size() + plan.n_admitted, limits.n_sequences_max);
        EXPECT_TRUE(preempted.empty() || plan.n_admitted == 0);
        uint32_t n_blocks = n_free, n_prompt_rows = 0, n_decodes = 0;
        for (uint32_t i : preempted) n_blocks += running[i].n_blocks;
        for (const PlannedRows& rows : plan.rows) {
            EXPECT_TRUE(planned.insert(rows.index).second);
            EXPECT_FALSE(preempted.contains(rows.index));
            ASSERT_LT(rows.index, running.size() + plan.n_admitted);
            const SequenceView& view =
                rows.index < running.size() ? running[rows.index] : waiting[rows.index - running.size()];
            EXPECT_LE(rows.n_rows, view.n_known - view.n_computed);
            EXPECT_EQ(rows.n_new_blocks, blocks_for(view.n_computed + rows.n_rows, 16) - view.n_blocks);
            ASSERT_LE(rows.n_new_blocks, n_blocks);
            n_blocks -= rows.n_new_blocks;
            bool is_decode = rows.index < running.size() && view.n_known - view.n_computed == 1;
            (is_decode ? n_decodes : n_prompt_rows) += rows.n_rows;
        }
        for (uint32_t i = 0; i < plan.n_admitted; ++i) EXPECT_TRUE(planned.contains(uint32_t(running.size()) + i));
        // A preempted decode may have been the one that made this a step with decodes.
        const bool is_limited = seed % 2 == 1 && preempted.empty();
        EXPECT_LE(n_prompt_rows, !is_limited ? limits.n_rows_max : n_decodes > 0 ? n_beside : n_alone);
        if (!running.empty() && !preempted.contains(0) && seed % 2 == 0 && n_rows_of(plan) < limits.n_rows_max) {
            bool has_blocks = running[0].n_blocks * 16 > running[0].n_computed || n_free > 0;
            EXPECT_TRUE(!has_blocks || planned.contains(0));
        }
        if (::testing::Test::HasFailure()) return;
    }
}

}  // namespace
}  // namespace lorad::server::scheduler_test
