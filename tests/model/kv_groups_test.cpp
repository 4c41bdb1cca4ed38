// Which layers' blocks are apart, and what the memory plan makes of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/exec/memory_plan.h"
#include "model/exec/state_cache.h"
#include "tests/support/families.h"

namespace lorad::model::kv_groups_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig config_of(const std::string& folder, const std::string& model) {
    auto config = load_model_config(lorad::testing::goldens_dir() / folder / "models" / model);
    EXPECT_TRUE(config.ok()) << config.error().message;
    return std::move(config).value();
}

TEST(KvGroups, LayersGoByWhatTheySeeAndWhoReadsThem) {
    const ModelConfig gemma = config_of("families", "gemma3-nested");
    const KvGroups groups = KvGroups::of(gemma);
    EXPECT_EQ(groups.window, 20u);
    EXPECT_TRUE(groups.has_both());
    EXPECT_THAT(groups.windowed, ElementsAre(true, true, false, true));
    EXPECT_EQ(groups.block_bytes(gemma, {}, true) + groups.block_bytes(gemma, {}, false), kv_block_bytes(gemma));
    EXPECT_EQ(groups.first_block(18), 0u);
    EXPECT_EQ(groups.first_block(83), 1u) << "tokens 64 to 83";
    EXPECT_EQ(groups.first_block(82), 0u) << "tokens 63 to 82";

    // Layers that share go with the layer that they read, and hold none.
    const ModelConfig shared = config_of("families", "gemma4-e2b");
    const KvGroups both = KvGroups::of(shared);
    for (uint32_t layer = 0; layer < shared.n_layers; ++layer) {
        const AttentionFacts facts = shared.layer(layer).attention;
        EXPECT_EQ(both.windowed[layer], facts.window != 0) << layer;
        EXPECT_EQ(both.windowed[layer], both.windowed[facts.kv_from.value_or(layer)]) << layer;
    }

    const KvGroups all = KvGroups::of(config_of("", "mistral-window"));
    EXPECT_TRUE(all.has_windows());
    EXPECT_FALSE(all.has_full);
    EXPECT_FALSE(KvGroups::of(config_of("", "qwen3")).has_windows());
    EXPECT_FALSE(KvGroups::of(config_of("families", "qwen35")).has_windows());
}

TEST(KvGroups, AReaderOfAllKeepsWhatItReads) {
    ModelConfig config = config_of("families", "gemma4-e2b");
    for (LayerFacts& layer : config.layers) {
        if (layer.attention.kv_from) layer.attention.window = 0;
    }
    const KvGroups groups = KvGroups::of(config);
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        const std::optional<uint32_t> from = config.layer(layer).attention.kv_from;
        EXPECT_FALSE(from && groups.windowed[*from]) << layer;
    }
}

// Gemma 3 has five layers with a window for each that sees all: the same memory holds several times as many tokens.
TEST(MemoryPlanOfWindows, TheSameMemoryHoldsMoreTokens) {
    const ModelConfig config = config_of("families", "gemma3-nested");
    gpu::DeviceCapabilities device;
    device.max_allocation_bytes = uint64_t{4} << 30;
    const uint64_t block = kv_block_bytes(config);
    MemoryPlanOptions options{
        .n_rows_max = 2048, .n_sequences_max = 16, .n_positions_max = 1024, .memory_utilization = 1.0};
    options.n_positions_max = 64 * 300;
    const auto kept = plan_memory(device, 1000 * block, config, 0, 0, options);
    ASSERT_TRUE(kept.ok()) << kept.error().message;
    EXPECT_EQ(kept->n_kv_blocks, 1000u);
    EXPECT_EQ(kept->n_window_blocks, 0u);
    options.may_group_kv = true;
    const auto apart = plan_memory(device, 1000 * block, config, 0, 0, options);
    ASSERT_TRUE(apart.ok()) << apart.error().message;
    // One layer of four sees all.
    EXPECT_EQ(apart->n_window_blocks, (16u * 4 + 64) * 5 / 4);
    EXPECT_EQ(apart->n_kv_blocks, 4000u - 3 * apart->n_window_blocks);
    EXPECT_LE(apart->kv_bytes, 1000 * block);
    EXPECT_EQ(apart->n_table_blocks(), apart->n_window_blocks);
    EXPECT_THAT(apart->table(),
                HasSubstr("the last 20 tokens of each text: " + std::to_string(64 * apart->n_kv_blocks) +
                          " tokens fit, without windows 64000"));
    // Where there is no more than that to use, less is taken.
    options.n_positions_max = 1024;
    const auto little = plan_memory(device, 1000 * block, config, 0, 0, options);
    ASSERT_TRUE(little.ok());
    EXPECT_EQ(little->n_kv_blocks, 256u);
    EXPECT_EQ(little->n_window_blocks, 160u);
    EXPECT_LT(little->kv_bytes, 256 * block);
    // Windows of more blocks than there are would take memory from the texts.
    options.n_sequences_max = 600;
    EXPECT_EQ(plan_memory(device, 200 * block, config, 0, 0, options)->n_window_blocks, 0u);
    options.n_sequences_max = 16;
    options.n_kv_blocks = 170;
    const auto wanted = plan_memory(device, 1000 * block, config, 0, 0, options);
    EXPECT_EQ(wanted->n_kv_blocks, 170u);
    EXPECT_EQ(wanted->n_window_blocks, 160u);
    options.n_kv_blocks = 160;
    EXPECT_EQ(plan_memory(device, 1000 * block, config, 0, 0, options)->n_window_blocks, 0u);
}

TEST(MemoryPlanOfStates, SnapshotsHaveAnEighthOrWhatIsAskedFor) {
    const ModelConfig config = config_of("families", "qwen35");
    const uint64_t slot = state_slot_bytes(config), block = kv_block_bytes(config);
    ASSERT_GT(slot, 0u);
    gpu::DeviceCapabilities device;
    device.max_allocation_bytes = uint64_t{4} << 30;
    MemoryPlanOptions options{.n_rows_max = 128,
                              .n_sequences_max = 4,
                              .n_positions_max = 64 * 100,
                              .memory_utilization = 1.0,
                              .state_bytes = 4 * slot};
    const uint64_t free_bytes = 4 * slot + 800 * block;
    const auto plan = plan_memory(device, free_bytes, config, 0, 0, options);
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    EXPECT_GE(plan->snapshot_bytes, std::min<uint64_t>(50 * block, 4 * slot) - slot)
        << "of what keys and values would have, at most 400 blocks";
    EXPECT_GE(plan->n_kv_blocks, 100u);
    EXPECT_LE(plan->kv_bytes + plan->snapshot_bytes + plan->state_bytes, free_bytes);
    EXPECT_THAT(plan->table(), HasSubstr(std::to_string(plan->n_snapshots) + " states of prefixes"));
    options.snapshot_bytes_max = 7 * slot + 1;
    EXPECT_EQ(plan_memory(device, 100 * slot + 800 * block, config, 0, 0, options)->n_snapshots, 7u);
    options.snapshot_bytes_max = 0;
    EXPECT_EQ(plan_memory(device, free_bytes, config, 0, 0, options)->n_snapshots, 0u);
    options.snapshot_bytes_max = uint64_t{1} << 40;
    EXPECT_EQ(plan_memory(device, uint64_t{1} << 40, config, 0, 0, options)->n_snapshots, 400u)
        << "a state at each block's end";
    // Blocks that are asked for, and do not fit.
    options.snapshot_bytes_max = 300 * slot;
    EXPECT_FALSE(plan_memory(device, 10 * slot + 100 * block, config, 0, 0, options).ok());
    // Buffers of one allocation.
    options.snapshot_bytes_max = std::nullopt;
    const StateSizes sizes = state_sizes(config, 0);
    device.max_allocation_bytes = std::max<uint64_t>(
        6 * sizeof(float) * std::max(sizes.conv_floats, sizes.delta_floats), 400 * kv_layer_block_bytes(config, 3));
    const auto narrow = plan_memory(device, 10000 * slot + 800 * block, config, 0, 0, options);
    ASSERT_TRUE(narrow.ok());
    EXPECT_LE((4 + narrow->n_snapshots) * sizeof(float) * std::max(sizes.conv_floats, sizes.delta_floats),
              device.max_allocation_bytes);
}

}  // namespace
}  // namespace lorad::model::kv_groups_test
