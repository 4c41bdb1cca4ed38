#include "model/step/step_state.h"

#include <cstring>
#include <set>

#include <gtest/gtest.h>

namespace lorad::model::step_state_test {
namespace {

template <typename T>
T at(const std::vector<std::byte>& bytes, uint64_t offset) {
    T value;
    std::memcpy(&value, bytes.data() + offset, sizeof(value));
    return value;
}

const SlotTraits& slot_traits(uint32_t slot) {
    static const SlotTraits three{.ranks = {16, 0, 0, 12}, .types = 2},
        gained{.ranks = {5, 4, 0, 12}, .is_plain = false, .types = 5},
        extended{.ranks = {5, 4, 0, 12}, .has_extras = true}, other{.ranks = {5, 4, 0, 12}};
    return slot == 3 ? three : slot == 6 ? gained : slot == 7 ? extended : other;
}
const SlotLookup kSlots = slot_traits;
BatchTraits scan(const StepBatch& batch, uint32_t tile_rows = 0) {
    return traits_of(batch, kSlots, {.tile_rows = tile_rows});
}

TEST(StepShape, BucketsHoldWhatTheyAreAskedFor) {
    EXPECT_EQ(bucket_for(0), 0u);
    EXPECT_EQ(buckets_up_to(33), (std::vector<uint32_t>{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48}));
    for (uint32_t n = 1; n < 3000; ++n) {
        ASSERT_GE(bucket_for(n), n);
        ASSERT_EQ(bucket_for(bucket_for(n)), bucket_for(n));
        ASSERT_LE(bucket_for(n), n + n / 2 + 1);
    }
}

TEST(StepState, TheTypesOfAdaptersAreThoseOfAllRows) {
    const std::vector<BlockId> block = {0};
    const std::vector<TokenId> token = {1};
    StepBatch batch;
    batch.add_rows(token, 0, block, kNoAdapterSlot);
    EXPECT_EQ(scan(batch).types, 0u);
    batch.add_rows(token, 0, block, 3);
    EXPECT_EQ(scan(batch).types, 2u);
    batch.add_rows(token, 0, block, 6);
    EXPECT_EQ(scan(batch).types, 7u);
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

    const StepShape shape{.row_bucket = 4, .output_bucket = 2, .attention_splits = 1, .lora = gpu::LoraLevel::kPlain};
    std::vector<std::byte> bytes(step_state_bytes(batch, shape));
    write_step_state(batch, shape, kSlots, 10, 4, bytes);
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
    EXPECT_EQ(row0.first_blocks[0], 7u);
    EXPECT_EQ(row0.first_blocks[1], 9u);
    const auto row2 = at<gpu::StepRow>(bytes, layout.rows + 2 * sizeof(gpu::StepRow));
    EXPECT_EQ(row2.token, 22);
    EXPECT_EQ(row2.kv_slot, 4u * 64 + 1);
    EXPECT_EQ(row2.first_blocks[0], 4u);
    EXPECT_EQ(row2.first_blocks[1], 4u);
    EXPECT_EQ(at<BlockId>(bytes, layout.block_tables + row2.block_table * sizeof(BlockId)), 4u);
    EXPECT_EQ(at<gpu::StepRow>(bytes, layout.rows + 3 * sizeof(gpu::StepRow)).token, ~1);
    EXPECT_EQ(at<gpu::LogitRow>(bytes, layout.logit_rows).readback, gpu::kNoReadback);
    EXPECT_EQ(at<gpu::LogitRow>(bytes, layout.logit_rows + sizeof(gpu::LogitRow)).readback, 11u);
    EXPECT_EQ(at<gpu::LogitRow>(bytes, layout.logit_rows + sizeof(gpu::LogitRow)).row, 3u);
}

TEST(StepState, RowsWithAnOutputAreAStepOfTheirOwnWhereTheyAreFew) {
    StepBatch batch;
    const std::vector<BlockId> blocks = {0, 1};
    const std::vector<TokenId> ten(10, 1);
    const uint32_t slots[] = {3, 3, 3, 3, 3, kNoAdapterSlot, 1};
    for (const uint32_t slot : slots) batch.add_output(batch.add_rows(ten, 20, blocks, slot) + 9, false);
    const StepShape shape{.row_bucket = 96, .output_bucket = 8, .lora = gpu::LoraLevel::kPlain};
    std::vector<std::byte> bytes(step_state_bytes(batch, shape));
    write_step_state(batch, shape, kSlots, 0, 4, bytes);
    const StepLayout layout(shape);
    const auto header = at<gpu::StepHeader>(bytes, layout.kept);
    EXPECT_EQ(header.n_rows, 7u);
    ASSERT_EQ(header.n_segments, 3u);
    const uint32_t expected[3][3] = {{0, 4, 3}, {4, 1, 3}, {6, 1, 1}};
    for (uint32_t i = 0; i < 3; ++i) {
        const auto segment = at<gpu::LoraSegment>(bytes, layout.kept_segments + i * sizeof(gpu::LoraSegment));
        EXPECT_EQ(segment.row_begin, expected[i][0]) << i;
        EXPECT_EQ(segment.n_rows, expected[i][1]) << i;
        EXPECT_EQ(segment.slot, expected[i][2]) << i;
        EXPECT_EQ(segment.low_begin, expected[i][0]) << i;
    }
    for (uint32_t i = 0; i < 7; ++i) {
        const auto row = at<gpu::StepRow>(bytes, layout.kept + sizeof(gpu::StepHeader) + i * sizeof(gpu::StepRow));
        EXPECT_EQ(row.adapter_slot, slots[i]) << i;
        EXPECT_EQ(row.position, 29u) << i;
    }
    EXPECT_EQ(header.shrink[1].grid[1], 3u);
    EXPECT_EQ(header.shrink[1].grid[0], 8 / gpu::kShrinkRanks) << "of the largest rank, 4";
    EXPECT_EQ(at<gpu::StepHeader>(bytes, 0).n_segments, 13u + 3) << "the whole step's, of 4 rows each";

    for (const StepShape& other : {StepShape{.row_bucket = 12, .output_bucket = 8, .lora = gpu::LoraLevel::kPlain},
                                   StepShape{.row_bucket = 96, .output_bucket = 8, .lora = gpu::LoraLevel::kFull},
                                   StepShape{.row_bucket = 96, .output_bucket = 0, .lora = gpu::LoraLevel::kPlain}}) {
        EXPECT_EQ(StepLayout(other).kept, StepLayout(other).kept_segments) << "there is none";
    }
}

TEST(StepState, ManyRowsWithAnOutputHaveSegmentsForShrinksOnMatrices) {
    StepBatch batch;
    const std::vector<BlockId> blocks = {0};
    const std::vector<TokenId> two(2, 1);
    for (uint32_t i = 0; i < 128; ++i) batch.add_output(batch.add_rows(two, 0, blocks, i < 40 ? 3u : 1u) + 1, false);
    const StepShape shape{.row_bucket = 256, .output_bucket = 128, .lora = gpu::LoraLevel::kPlain};
    std::vector<std::byte> bytes(step_state_bytes(batch, shape));
    write_step_state(batch, shape, kSlots, 0, 4, bytes);
    const StepLayout layout(shape);
    const auto header = at<gpu::StepHeader>(bytes, layout.kept);
    EXPECT_EQ(header.n_rows, 128u);
    ASSERT_EQ(header.n_segments, 3u + 6) << "of 16 rows each, of 40 and 88 rows";
    uint32_t next = 0;
    for (uint32_t i = 0; i < 9; ++i) {
        const auto segment = at<gpu::LoraSegment>(bytes, layout.kept_segments + i * sizeof(gpu::LoraSegment));
        EXPECT_EQ(segment.row_begin, next) << i;
        EXPECT_EQ(segment.slot, next < 40 ? 3u : 1u) << i;
        EXPECT_LE(segment.n_rows, gpu::kMaxSegmentRows) << i;
        next += segment.n_rows;
    }
    EXPECT_EQ(next, 128u);
}

TEST(StepState, CutsRunsOfOneAdapterIntoSegments) {
    StepBatch batch;
    const std::vector<BlockId> blocks = {0, 1};
    const std::vector<TokenId> twenty(20, 1), two(2, 1);
    batch.add_rows(twenty, 0, blocks, 3);
    batch.add_rows(two, 0, blocks, kNoAdapterSlot);
    batch.add_rows(two, 30, blocks, 1);
    const StepShape shape{.row_bucket = 128, .output_bucket = 0, .attention_splits = 1, .lora = gpu::LoraLevel::kPlain};
    std::vector<std::byte> bytes(step_state_bytes(batch, shape));
    write_step_state(batch, shape, kSlots, 0, 4, bytes);
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
    const uint32_t grids[4][3] = {
        {16 / gpu::kShrinkRanks, 3, 3}, {8 / gpu::kShrinkRanks, 3, 1}, {0, 0, 0}, {16 / gpu::kShrinkRanks, 3, 1}};
    const uint32_t pieces[4] = {16 / 2 * 3 * 3, 8 / 2 * 3, 0, 16 / 2 * 3};
    for (uint32_t group = 0; group < 4; ++group) {
        EXPECT_EQ(header.shrink[group].stride_grid[0], pieces[group]) << group;
        for (uint32_t axis = 0; axis < 3; ++axis)
            EXPECT_EQ(header.shrink[group].grid[axis], grids[group][axis]) << group << axis;
    }
}

TEST(StepState, StepsOfFewRowsHaveShortSegments) {
    StepBatch batch;
    const std::vector<BlockId> blocks = {0};
    const std::vector<TokenId> thirty(30, 1);
    batch.add_rows(thirty, 0, blocks, 3);
    const StepShape shape{.row_bucket = 32, .lora = gpu::LoraLevel::kPlain};
    std::vector<std::byte> bytes(step_state_bytes(batch, shape));
    write_step_state(batch, shape, kSlots, 0, 4, bytes);
    ASSERT_EQ(at<gpu::StepHeader>(bytes, 0).n_segments, 8u);
    const auto last = at<gpu::LoraSegment>(bytes, StepLayout(shape).segments + 7 * sizeof(gpu::LoraSegment));
    EXPECT_EQ(last.row_begin, 28u);
    EXPECT_EQ(last.n_rows, 2u);
}

TEST(StepState, CutsLongRunsOfASequenceIntoTiles) {
    StepBatch batch;
    const std::vector<BlockId> blocks = {0, 1, 2}, other = {5};
    const std::vector<TokenId> long_run(100, 1), four(4, 1), three(3, 1), one(1, 1);
    batch.add_rows(one, 9, other, kNoAdapterSlot);
    batch.add_rows(long_run, 20, blocks, kNoAdapterSlot);
    batch.add_rows(three, 0, other, kNoAdapterSlot);
    batch.add_rows(four, 50, other, kNoAdapterSlot);
    const RowRuns runs = scan(batch, gpu::kAttentionTileRows).runs;
    EXPECT_EQ(runs.n_tiles, 3u);
    EXPECT_EQ(runs.n_single_rows, 4u);
    const StepShape shape{.row_bucket = 128, .attention_splits = 4, .tiles = true, .single_bucket = 64};
    std::vector<std::byte> bytes(step_state_bytes(batch, shape));
    write_step_state(batch, shape, kSlots, 0, 28, bytes);
    const StepLayout layout(shape);
    const auto header = at<gpu::StepHeader>(bytes, 0);
    EXPECT_EQ(header.tile_grid[0], 28u);
    EXPECT_EQ(header.tile_grid[1], 3u);
    EXPECT_EQ(header.tile_grid[2], 4u);
    // Those that see most come first.
    const uint32_t expected[3][2] = {{65, 36}, {104, 4}, {1, 64}};
    for (uint32_t i = 0; i < 3; ++i) {
        const auto tile = at<gpu::AttentionTile>(bytes, layout.tiles + i * sizeof(gpu::AttentionTile));
        EXPECT_EQ(tile.row_begin, expected[i][0]) << i;
        EXPECT_EQ(tile.n_rows, expected[i][1]) << i;
    }
    ASSERT_EQ(header.n_single_rows, 4u);
    const uint32_t singles[] = {0, 101, 102, 103};
    for (uint32_t i = 0; i < 4; ++i)
        EXPECT_EQ(at<uint32_t>(bytes, layout.single_rows + i * sizeof(uint32_t)), singles[i]);
    EXPECT_EQ(at<BlockId>(bytes, layout.block_tables), 5u);
}

TEST(StepState, MakesTilesOfAsManyRowsAsTheShapeSays) {
    StepBatch batch;
    const std::vector<BlockId> blocks = {0, 1, 2, 3, 4};
    batch.add_rows(std::vector<TokenId>(300, 1), 0, blocks, kNoAdapterSlot);
    EXPECT_EQ(scan(batch, 128).runs.n_tiles, 3u);
    const StepShape shape{.row_bucket = 384, .tiles = true, .tile_rows = 128};
    std::vector<std::byte> bytes(step_state_bytes(batch, shape));
    write_step_state(batch, shape, kSlots, 0, 4, bytes);
    ASSERT_EQ(at<gpu::StepHeader>(bytes, 0).tile_grid[1], 3u);
    const uint32_t expected[3][2] = {{256, 44}, {128, 128}, {0, 128}};
    for (uint32_t i = 0; i < 3; ++i) {
        const auto tile = at<gpu::AttentionTile>(bytes, StepLayout(shape).tiles + i * sizeof(gpu::AttentionTile));
        EXPECT_EQ(tile.row_begin, expected[i][0]) << i;
        EXPECT_EQ(tile.n_rows, expected[i][1]) << i;
    }
}

TEST(StepState, RunsOfOneAdapterAreLongOrShort) {
    const std::vector<BlockId> blocks = {0, 1};
    const std::vector<TokenId> sixty(60, 1), one(1, 1);
    StepBatch batch;
    batch.add_rows(sixty, 0, blocks, kNoAdapterSlot);
    EXPECT_FALSE(scan(batch).has_long_runs);  // nothing to add
    batch.add_rows(sixty, 0, blocks, 1);
    EXPECT_TRUE(scan(batch).has_long_runs);
    for (uint32_t slot = 2; slot < 6; ++slot) batch.add_rows(one, 70, blocks, slot);
    EXPECT_FALSE(scan(batch).has_long_runs);
}

TEST(StepState, RunsAreCountedInEveryTileOfTheKernelForFewOfThem) {
    const std::vector<BlockId> blocks = {0, 1};
    const std::vector<TokenId> thirty(30, 1), one(1, 1);
    StepBatch batch;
    batch.add_rows(thirty, 0, blocks, kNoAdapterSlot);
    EXPECT_EQ(scan(batch).most_runs, 0u);
    batch.add_rows(one, 30, blocks, 4);
    EXPECT_EQ(scan(batch).most_runs, 1u);
    // Rows 31..60: one of them in the first tile; the others are one run of the second, as are those that follow.
    batch.add_rows(thirty, 0, blocks, 5);
    EXPECT_EQ(scan(batch).most_runs, 2u);
    for (uint32_t slot : {5u, 6u, 6u}) batch.add_rows(one, 70, blocks, slot);
    EXPECT_EQ(scan(batch).most_runs, 2u);
    for (uint32_t slot : {6u, kNoAdapterSlot, 6u, 7u}) batch.add_rows(one, 70, blocks, slot);
    EXPECT_EQ(scan(batch).most_runs, 3u) << "a row without an adapter ends a run";
}

TEST(StepState, RowsOfOneListShareItAndEachUseHasItsOwnShrinkRows) {
    StepBatch batch;
    const std::vector<BlockId> blocks = {0, 1};
    const std::vector<TokenId> eighteen(18, 1), two(2, 1), one(1, 1);
    const std::vector<LoraUse> pair = {{3, 1.0f}, {5, -0.5f}}, scaled = {{3, 2.0f}};
    batch.add_rows(eighteen, 0, blocks, RowAdapters{pair});
    batch.add_fed_back_row(0, 30, blocks, RowAdapters{pair});
    batch.add_rows(two, 0, blocks, RowAdapters{});
    batch.add_rows(one, 3, blocks, RowAdapters{scaled});
    batch.add_rows(one, 4, blocks, RowAdapters{pair});
    EXPECT_EQ(scan(batch).lora, gpu::LoraLevel::kFull);
    const StepShape shape{.row_bucket = 24, .output_bucket = 0, .attention_splits = 1, .lora = gpu::LoraLevel::kFull};
    std::vector<std::byte> bytes(step_state_bytes(batch, shape));
    write_step_state(batch, shape, kSlots, 0, 4, bytes);
    const StepLayout layout(shape);
    const auto row = [&](uint32_t i) { return at<gpu::StepRow>(bytes, layout.rows + i * sizeof(gpu::StepRow)); };
    const auto use = [&](uint32_t i) { return at<gpu::StepUse>(bytes, layout.uses + i * sizeof(gpu::StepUse)); };
    const auto header = at<gpu::StepHeader>(bytes, 0);

    EXPECT_EQ(row(18).use_begin, row(0).use_begin);
    const uint32_t n_uses[] = {2, 0, 1, 2}, at_row[] = {18, 19, 21, 22};
    for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(row(at_row[i]).n_uses, n_uses[i]) << i;
    EXPECT_EQ(use(row(5).use_begin).slot, 3u);
    EXPECT_EQ(use(row(5).use_begin + 1).slot, 5u);
    EXPECT_EQ(use(row(5).use_begin + 1).scale, -0.5f);
    EXPECT_EQ(use(row(21).use_begin).scale, 2.0f);

    // Every row and use is in one segment of its slot, at the shrink row that the use names; no two share one.
    std::set<uint32_t> seen;
    for (uint32_t i = 0; i < header.n_segments; ++i) {
        const auto segment = at<gpu::LoraSegment>(bytes, layout.segments + i * sizeof(gpu::LoraSegment));
        EXPECT_LE(segment.n_rows, gpu::kMaxSegmentRows);
        for (uint32_t j = 0; j < segment.n_rows; ++j) {
            const gpu::StepRow owner = row(segment.row_begin + j);
            bool found = false;
            for (uint32_t u = owner.use_begin; u < owner.use_begin + owner.n_uses; ++u) {
                found = found || (use(u).slot == segment.slot &&
                                  use(u).low_offset + segment.row_begin + j == segment.low_begin + j);
            }
            EXPECT_TRUE(found) << "segment " << i << " row " << segment.row_begin + j;
            EXPECT_TRUE(seen.insert(segment.low_begin + j).second);
        }
    }
    EXPECT_EQ(seen.size(), 19u * 2 + 1 + 2);
    EXPECT_EQ(*seen.rbegin(), 19u * 2 + 1 + 2 - 1);
}

TEST(StepState, ActivatedAdaptersBeginAtTheirPosition) {
    StepBatch batch;
    const std::vector<BlockId> blocks = {0};
    const std::vector<TokenId> five(5, 1), one(1, 1);
    const std::vector<LoraUse> uses = {{3, 1.0f}};
    batch.add_rows(five, 10, blocks, RowAdapters{uses, 12});
    batch.add_rows(five, 0, blocks, RowAdapters{uses, 5});
    batch.add_rows(one, 5, blocks, RowAdapters{uses, 5});
    for (uint32_t i = 0; i < batch.n_rows(); ++i)
        EXPECT_EQ(batch.rows()[i].n_uses, (i >= 2 && i < 5) || i == 10 ? 1u : 0u) << i;
    EXPECT_EQ(scan(batch).lora, gpu::LoraLevel::kPlain);
    StepBatch before;
    before.add_rows(five, 0, blocks, RowAdapters{uses, 5});
    EXPECT_EQ(scan(before).lora, gpu::LoraLevel::kNone);
}

TEST(StepState, OneAdapterAsItIsNeedsThePlainKernelsOnly) {
    const std::vector<BlockId> blocks = {0};
    const std::vector<TokenId> one(1, 1);
    const auto level_of = [&](std::vector<LoraUse> uses) {
        StepBatch batch;
        batch.add_rows(one, 0, blocks, RowAdapters{uses});
        batch.add_rows(one, 1, blocks, 2);
        return scan(batch).lora;
    };
    EXPECT_EQ(level_of({}), gpu::LoraLevel::kPlain);
    EXPECT_EQ(level_of({{3, 1.0f}}), gpu::LoraLevel::kPlain);
    EXPECT_EQ(level_of({{7, 1.0f}}), gpu::LoraLevel::kPlain);  // extras are not a matter of the linear modules
    EXPECT_EQ(level_of({{3, 0.5f}}), gpu::LoraLevel::kFull);
    EXPECT_EQ(level_of({{3, 1.0f}, {2, 1.0f}}), gpu::LoraLevel::kFull);
    EXPECT_EQ(level_of({{6, 1.0f}}), gpu::LoraLevel::kFull);  // has gains
}

TEST(StepState, OnlyASingleUseNamesExtras) {
    const std::vector<BlockId> blocks = {0};
    const std::vector<TokenId> one(1, 1);
    const std::vector<LoraUse> mix = {{7, 1.0f}, {3, 1.0f}};
    StepBatch batch;
    batch.add_rows(one, 0, blocks, 3);
    EXPECT_FALSE(scan(batch).has_extras);
    batch.add_rows(one, 0, blocks, 7);
    batch.add_rows(one, 0, blocks, RowAdapters{mix});
    EXPECT_TRUE(scan(batch).has_extras);
    const StepShape shape{.row_bucket = 3, .lora = gpu::LoraLevel::kFull, .extras = true};
    std::vector<std::byte> bytes(step_state_bytes(batch, shape));
    write_step_state(batch, shape, kSlots, 0, 4, bytes);
    const uint32_t expected[] = {kNoAdapterSlot, 7, kNoAdapterSlot};
    for (uint32_t i = 0; i < 3; ++i) {
        EXPECT_EQ(at<gpu::StepRow>(bytes, StepLayout(shape).rows + i * sizeof(gpu::StepRow)).extras_slot, expected[i])
            << i;
    }
}

TEST(StepState, KnowsWhereEachRowIsTheOnlyOneOfItsSequence) {
    StepBatch batch;
    const std::vector<BlockId> blocks = {0, 1};
    const std::vector<TokenId> one(1, 1), two(2, 1);
    batch.add_rows(one, 10, blocks, kNoAdapterSlot);
    EXPECT_TRUE(scan(batch).has_lone_rows);
    batch.add_rows(one, 10, std::vector<BlockId>{2}, kNoAdapterSlot);
    batch.add_fed_back_row(1, 11, std::vector<BlockId>{3}, kNoAdapterSlot);
    EXPECT_TRUE(scan(batch).has_lone_rows);
    batch.add_rows(two, 63, std::vector<BlockId>{4, 5}, kNoAdapterSlot);
    EXPECT_FALSE(scan(batch).has_lone_rows) << "the second sees the first, though in another block";
    batch.add_rows(one, 5, std::vector<BlockId>{6}, kNoAdapterSlot);
    EXPECT_FALSE(scan(batch).has_lone_rows);
}

TEST(StepStateDeathTest, AbortsWhenAPositionHasNoBlock) {
    StepBatch batch;
    const std::vector<BlockId> blocks = {0};
    const std::vector<TokenId> one = {1};
    batch.add_rows(one, 64, blocks, kNoAdapterSlot);
    const StepShape shape{.row_bucket = 1};
    std::vector<std::byte> bytes(step_state_bytes(batch, shape));
    EXPECT_DEATH(write_step_state(batch, shape, kSlots, 0, 4, bytes), "CHECK");
}

}  // namespace
}  // namespace lorad::model::step_state_test
