#include "model/exec/kv_cache.h"

#include <random>
#include <set>

#include <gtest/gtest.h>

namespace lorad::model::kv_cache_test {
namespace {

TEST(BlockPool, HandsOutEachBlockOnce) {
    BlockPool pool(5);
    std::set<BlockId> seen;
    for (int i = 0; i < 5; ++i) {
        const auto block = pool.allocate();
        ASSERT_TRUE(block.has_value());
        EXPECT_LT(*block, 5u);
        EXPECT_TRUE(seen.insert(*block).second);
    }
    EXPECT_FALSE(pool.allocate().has_value());
    EXPECT_EQ(pool.n_free(), 0u);
}

TEST(BlockPool, AllocatesAllOrNothing) {
    BlockPool pool(4);
    std::vector<BlockId> blocks;
    EXPECT_TRUE(pool.allocate(3, blocks));
    EXPECT_FALSE(pool.allocate(2, blocks));
    EXPECT_EQ(blocks.size(), 3u);
    EXPECT_EQ(pool.n_free(), 1u);
    pool.release(blocks);
    EXPECT_EQ(pool.n_free(), 4u);
}

TEST(BlockPool, KeepsItsCountsUnderRandomUse) {
    BlockPool pool(64);
    std::mt19937 random(7);
    std::vector<std::vector<BlockId>> held;
    std::set<BlockId> out;
    for (int round = 0; round < 2000; ++round) {
        if (random() % 2 == 0) {
            std::vector<BlockId> blocks;
            if (pool.allocate(random() % 9, blocks)) {
                for (const BlockId block : blocks) EXPECT_TRUE(out.insert(block).second);
                held.push_back(blocks);
            }
        } else if (!held.empty()) {
            const size_t at = random() % held.size();
            for (const BlockId block : held[at]) out.erase(block);
            pool.release(held[at]);
            held.erase(held.begin() + static_cast<ptrdiff_t>(at));
        }
        ASSERT_EQ(pool.n_used(), out.size());
        ASSERT_EQ(pool.n_used() + pool.n_free(), pool.n_blocks());
    }
}

TEST(BlockPoolDeathTest, AbortsWhenABlockIsGivenBackTwice) {
    BlockPool pool(2);
    const BlockId block = *pool.allocate();
    pool.release(block);
    EXPECT_DEATH(pool.release(block), "CHECK");
}

TEST(KvCache, CountsBlocksAndBytes) {
    EXPECT_EQ(blocks_for_tokens(0), 0u);
    EXPECT_EQ(blocks_for_tokens(64), 1u);
    EXPECT_EQ(blocks_for_tokens(65), 2u);
    ModelConfig config;
    config.n_layers = 3;
    config.n_kv_heads = 2;
    config.head_dim = 32;
    EXPECT_EQ(kv_block_bytes(config), 3u * 2 * 64 * 64 * 2);
    // A byte for each value, and two for each group of 32, an even number of groups for a token.
    EXPECT_EQ(kv_block_bytes(config, gpu::KvType::kInt8), 3u * 2 * 64 * 2 * (32 + 4));
    config.head_dim = 128;
    EXPECT_EQ(kv_block_bytes(config, gpu::KvType::kInt8), 3u * 2 * 64 * 2 * (128 + 8));
}

}  // namespace
}  // namespace lorad::model::kv_cache_test
