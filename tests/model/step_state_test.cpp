#include "model/step_state.h"

#include <gtest/gtest.h>

#include <cstring>

namespace lorad::model {
namespace {

template <typename T>
T at(const std::vector<std::byte>& bytes, uint64_t offset) {
    T value;
    std::memcpy(&value, bytes.data() + offset, sizeof(value));
    return value;
}

const SlotRanks kRanks = [](uint32_t slot) {
    return std::array<uint32_t, 4>{slot == 3 ? 16u : 5u, slot == 3 ? 0u : 4u, 0u, 12u};
};

TEST(StepShape, BucketsHoldWhatTheyAreAskedFor) {
    EXPECT_EQ(bucket_for(0), 0u);
    EXPECT_EQ(buckets_up_to(33), (std::vector<uint32_t>{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48}));
    for (uint32_t n = 1; n < 3000; ++n) {
        ASSERT_GE(bucket_for(n), n);
        ASSERT_EQ(bucket_for(bucket_for(n)), bucket_for(n));
        ASSERT_LE(bucket_for(n), n + n / 2 + 1);
    }
}

TEST(StepState, WritesRowsWhereTheirKvGoes) {
    StepBatch batch;
    const std::vector<BlockId> first = {7, 9}, second = {4};
    const std::vector<TokenId> decode = {11}, chunk = {21, 22};
    EXPECT_EQ(batch.add_rows(decode, 70, first, 3), 0u);
    EXPECT_EQ(batch.add_rows(chunk, 0, second, kNoAdapterSlot), 1u);
    EXPECT_EQ(batch.add_fed_back_row(1, 2, second, kNoAdapterSlot), 3u);
    EXPECT_EQ(batch.add_output(0, false), 0u);
    EXPECT_EQ(batch.add_output(3, true), 1u);
    EXPECT_TRUE(batch.has_lora());

    const StepShape shape{.row_bucket = 4, .output_bucket = 2, .attention_splits = 1, .with_lora = true};
    std::vector<std::byte> bytes(step_state_bytes(batch, shape));
    write_step_state(batch, shape, kRanks, 10, bytes);
    const StepLayout layout(shape);
    const auto header = at<gpu::StepHeader>(bytes, 0);
    EXPECT_EQ(header.n_rows, 4u);
    EXPECT_EQ(header.n_logit_rows, 2u);
    EXPECT_EQ(header.n_segments, 1u);
    const auto row0 = at<gpu::StepRow>(bytes, layout.rows);
    EXPECT_EQ(row0.token, 11);
    EXPECT_EQ(row0.position, 70u);
    EXPECT_EQ(row0.kv_slot, 9u * 64 + 6);
    EXPECT_EQ(row0.adapter_slot, 3u);
    const auto row2 = at<gpu::StepRow>(bytes, layout.rows + 2 * sizeof(gpu::StepRow));
    EXPECT_EQ(row2.token, 22);
    EXPECT_EQ(row2.kv_slot, 4u * 64 + 1);
    EXPECT_EQ(at<BlockId>(bytes, layout.block_tables + row2.block_table * sizeof(BlockId)), 4u);
    EXPECT_EQ(at<gpu::StepRow>(bytes, layout.rows + 3 * sizeof(gpu::StepRow)).token, ~1);
    EXPECT_EQ(at<gpu::LogitRow>(bytes, layout.logit_rows).readback, gpu::kNoReadback);
    EXPECT_EQ(at<gpu::LogitRow>(bytes, layout.logit_rows + sizeof(gpu::LogitRow)).readback, 11u);
    EXPECT_EQ(at<gpu::LogitRow>(bytes, layout.logit_rows + sizeof(gpu::LogitRow)).row, 3u);
}

TEST(StepState, CutsRunsOfOneAdapterIntoSegments) {
    StepBatch batch;
    const std::vector<BlockId> blocks = {0, 1};
    const std::vector<TokenId> twenty(20, 1), two(2, 1);
    batch.add_rows(twenty, 0, blocks, 3);
    batch.add_rows(two, 0, blocks, kNoAdapterSlot);
    batch.add_rows(two, 30, blocks, 1);
    const StepShape shape{.row_bucket = 24, .output_bucket = 0, .attention_splits = 1, .with_lora = true};
    std::vector<std::byte> bytes(step_state_bytes(batch, shape));
    write_step_state(batch, shape, kRanks, 0, bytes);
    const auto header = at<gpu::StepHeader>(bytes, 0);
    ASSERT_EQ(header.n_segments, 3u);
    const StepLayout layout(shape);
    const uint32_t expected[3][3] = {{0, 16, 3}, {16, 4, 3}, {22, 2, 1}};
    for (uint32_t i = 0; i < 3; ++i) {
        const auto segment = at<gpu::LoraSegment>(bytes, layout.segments + i * sizeof(gpu::LoraSegment));
        EXPECT_EQ(segment.row_begin, expected[i][0]);
        EXPECT_EQ(segment.n_rows, expected[i][1]);
        EXPECT_EQ(segment.slot, expected[i][2]);
    }
    // Largest ranks of both adapters: 16, 4, none, 12.
    const uint32_t grids[4][3] = {{16 / gpu::kShrinkRanks, 3, 3}, {8 / gpu::kShrinkRanks, 3, 1}, {0, 0, 0}, {16 / gpu::kShrinkRanks, 3, 1}};
    for (uint32_t group = 0; group < 4; ++group) {
        for (uint32_t axis = 0; axis < 3; ++axis) EXPECT_EQ(header.shrink_grid[group][axis], grids[group][axis]) << group << axis;
    }
}

TEST(StepStateDeathTest, AbortsWhenAPositionHasNoBlock) {
    StepBatch batch;
    const std::vector<BlockId> blocks = {0};
    const std::vector<TokenId> one = {1};
    batch.add_rows(one, 64, blocks, kNoAdapterSlot);
    const StepShape shape{.row_bucket = 1};
    std::vector<std::byte> bytes(step_state_bytes(batch, shape));
    EXPECT_DEATH(write_step_state(batch, shape, kRanks, 0, bytes), "CHECK");
}

}  // namespace
}  // namespace lorad::model
