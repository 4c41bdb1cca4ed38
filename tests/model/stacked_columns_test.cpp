#include "model/weights/stacked_columns.h"

#include <cstring>

#include <gtest/gtest.h>

#include "model/step/step_state.h"

namespace lorad::model::stacked_columns_test {
namespace {

constexpr uint32_t kF16 = 1u << static_cast<uint32_t>(gpu::ScalarType::kF16);

// Slot 3: 16 ranks of f16. Slot 5: 40, 8, 0 and 17 ranks of f32. Slot 9: 512 ranks. Others: one rank.
const SlotTraits& traits_of(uint32_t slot) {
    static const SlotTraits three{.ranks = {16, 16, 16, 16}, .types = kF16}, five{.ranks = {40, 8, 0, 17}, .types = 1},
        nine{.ranks = {512, 512, 512, 512}, .types = kF16}, others{.ranks = {1, 1, 1, 1}, .types = kF16};
    return slot == 3 ? three : slot == 5 ? five : slot == 9 ? nine : others;
}
const SlotLookup kSlots = traits_of;

// Rows of one sequence each time.
StepBatch batch_of(const std::vector<std::pair<uint32_t, uint32_t>>& runs) {
    StepBatch batch;
    static const std::vector<BlockId> blocks(16);
    for (const auto& [slot, n_rows] : runs) batch.add_rows(std::vector<TokenId>(n_rows, 1), 0, blocks, slot);
    return batch;
}

TEST(StackedColumns, AreModuleByModuleRankBlockByRankBlockPartByPart) {
    const auto columns =
        StackedColumns::of(batch_of({{kNoAdapterSlot, 2}, {5, 3}, {3, 4}, {5, 1}}), kSlots, gpu::ScalarType::kF16);
    ASSERT_TRUE(columns);
    EXPECT_EQ(columns->number_of(5), 0u);
    EXPECT_EQ(columns->number_of(3), 1u);
    const gpu::StackedGroup& qkv = columns->groups()[0];
    EXPECT_EQ(qkv.n_blocks, 36u)
        << "3 modules of 3 blocks of 3 parts, 3 of one of 2, and what a step of 64 columns leaves";
    EXPECT_EQ(qkv.adapters[0].first_block, 0u);
    EXPECT_EQ(qkv.adapters[0].rank_blocks, 3u);
    EXPECT_EQ(qkv.adapters[0].parts, 3u);
    EXPECT_EQ(qkv.adapters[1].first_block, 27u);
    EXPECT_EQ(qkv.adapters[1].rank_blocks, 1u);
    EXPECT_EQ(qkv.adapters[1].parts, 2u);
    for (uint32_t block = 0; block < 27; ++block) {
        EXPECT_EQ(qkv.blocks[block].slot, 5u);
        EXPECT_EQ(qkv.blocks[block].what, block / 3 % 3 * 16 | block / 9 << 16 | block % 3 << 24) << block;
    }
    for (uint32_t block = 27; block < 33; ++block) {
        EXPECT_EQ(qkv.blocks[block].slot, 3u);
        EXPECT_EQ(qkv.blocks[block].what, (block - 27) / 2 << 16 | (block - 27) % 2 << 24) << block;
    }
    for (uint32_t block = 33; block < 36; ++block) EXPECT_EQ(qkv.blocks[block].slot, gpu::kNoSlot);
    const gpu::StackedGroup& gate_up = columns->groups()[2];
    EXPECT_EQ(gate_up.n_blocks, 4u);
    EXPECT_EQ(gate_up.adapters[0].rank_blocks, 0u) << "slot 5 has nothing there";
}

TEST(StackedColumns, AWindowHasTheStepsOfItsRowsAdapters) {
    const auto columns =
        StackedColumns::of(batch_of({{5, 100}, {kNoAdapterSlot, 28}, {3, 128}, {kNoAdapterSlot, 130}, {3, 1}}), kSlots,
                          gpu::ScalarType::kF16);
    ASSERT_TRUE(columns);
    ASSERT_EQ(columns->windows(0).size(), 4u);
    const auto expect = [&](uint32_t group, uint32_t tile, uint32_t begin, uint32_t n) {
        EXPECT_EQ(columns->windows(group)[tile].begin, begin) << group << ", " << tile;
        EXPECT_EQ(columns->windows(group)[tile].n, n) << group << ", " << tile;
    };
    expect(0, 0, 0, 7);  // 27 blocks
    expect(0, 1, 6, 3);  // 27..33
    expect(0, 2, 0, 0);
    expect(0, 3, 6, 3);
    expect(2, 0, 0, 0);
    expect(2, 1, 0, 1);
    EXPECT_EQ(columns->mean_steps(0), (7.0 + 3 + 0 + 3) / 4);
    EXPECT_EQ(columns->mean_steps(2), (0.0 + 1 + 0 + 1) / 4);
}

TEST(StackedColumns, AreNotThereWhereTheyFindNoRoom) {
    EXPECT_FALSE(StackedColumns::of(batch_of({{9, 1}}), kSlots, gpu::ScalarType::kF16));
    std::vector<std::pair<uint32_t, uint32_t>> runs;
    for (uint32_t slot = 10; slot < 10 + gpu::kStackedAdaptersMax; ++slot) runs.emplace_back(slot, 1);
    const auto full = StackedColumns::of(batch_of(runs), kSlots, gpu::ScalarType::kF16);
    ASSERT_TRUE(full);
    EXPECT_EQ(full->groups()[0].n_blocks, gpu::kStackedBlocksMax);
    EXPECT_FALSE(StackedColumns::of(batch_of(runs), kSlots, gpu::ScalarType::kBf16)) << "three parts of each";
    runs.emplace_back(30, 1);
    EXPECT_FALSE(StackedColumns::of(batch_of(runs), kSlots, gpu::ScalarType::kF16)) << "one more";
}

TEST(StackedColumns, AreWrittenWithSegmentsOfOneBlockEach) {
    const StepBatch batch = batch_of({{kNoAdapterSlot, 10}, {5, 30}, {3, 100}});
    const StepShape shape{.row_bucket = 192,
                          .output_bucket = 0,
                          .lora = gpu::LoraLevel::kPlain,
                          .method = AdapterMethod::kStacked,
                          .stacked_type = gpu::ScalarType::kF16};
    std::vector<std::byte> bytes(step_state_bytes(batch, shape));
    write_step_state(batch, shape, kSlots, 0, 4, bytes);
    const StepLayout layout(shape);
    const auto columns = StackedColumns::of(batch, kSlots, gpu::ScalarType::kF16);
    for (uint32_t group = 0; group < gpu::kLoraGroups; ++group) {
        EXPECT_EQ(
            std::memcmp(bytes.data() + layout.stacked_of(group), &columns->groups()[group], sizeof(gpu::StackedGroup)),
            0);
        ASSERT_EQ(columns->windows(group).size(), 2u);
        EXPECT_EQ(std::memcmp(bytes.data() + layout.windows_of(group), columns->windows(group).data(),
                              2 * sizeof(gpu::StackedWindow)),
                  0);
    }
    gpu::StepHeader header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    ASSERT_EQ(header.n_segments, 10u);
    const uint32_t expected[10][3] = {{10, 6, 0},  {16, 16, 0}, {32, 8, 0},  {40, 8, 1},   {48, 16, 1},
                                      {64, 16, 1}, {80, 16, 1}, {96, 16, 1}, {112, 16, 1}, {128, 12, 1}};
    for (uint32_t i = 0; i < 10; ++i) {
        gpu::LoraSegment segment;
        std::memcpy(&segment, bytes.data() + layout.segments + i * sizeof(segment), sizeof(segment));
        EXPECT_EQ(segment.row_begin, expected[i][0]) << i;
        EXPECT_EQ(segment.n_rows, expected[i][1]) << i;
        EXPECT_EQ(segment.low_begin, expected[i][2]) << i;
        EXPECT_EQ(segment.slot, expected[i][2] == 0 ? 5u : 3u) << i;
    }
}

}  // namespace
}  // namespace lorad::model::stacked_columns_test
