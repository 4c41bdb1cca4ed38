#include "server/engine/scheduler.h"

#include <numeric>

#include <gtest/gtest.h>

namespace lorad::server {
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
    StepPlan plan = plan_step(running, waiting, 7,
                              {.n_rows_max = 300, .n_sequences_max = 8, .block_tokens = 64});
    EXPECT_EQ(plan.n_admitted, 0u);
    plan = plan_step(running, waiting, 8,
                     {.n_rows_max = 500, .n_sequences_max = 8, .block_tokens = 64});
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
    std::vector<SequenceView> running{
        {65, 64, 1, 0, oldest}, {128, 127, 2, 0, second}, {128, 127, 2, 0, third}};
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

}  // namespace
}  // namespace lorad::server
