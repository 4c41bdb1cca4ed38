#include "server/engine/prefix_cache.h"

#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

namespace lorad::server::prefix_cache_test {
namespace {

BlockIdentity identity_of(uint32_t number) {
    BlockIdentity identity{};
    std::memcpy(identity.data(), &number, sizeof number);
    return identity;
}
std::vector<BlockIdentity> chain(std::initializer_list<uint32_t> numbers) {
    std::vector<BlockIdentity> out;
    for (uint32_t number : numbers) out.push_back(identity_of(number));
    return out;
}

// Blocks named by a chain, held.
std::vector<BlockId> publish(PrefixCache& cache, const std::vector<BlockIdentity>& prefix, bool is_merged = false) {
    std::vector<BlockId> blocks;
    EXPECT_TRUE(cache.allocate(uint32_t(prefix.size()), blocks));
    for (size_t i = 0; i < prefix.size(); ++i) cache.publish(blocks[i], prefix[i], is_merged);
    return blocks;
}

TEST(PrefixCache, FindsTheLongestPrefixThatItHas) {
    PrefixCache cache(8);
    auto blocks = publish(cache, chain({1, 2, 3}));
    EXPECT_EQ(cache.find(chain({1, 2, 3, 4}), false).n_blocks, 3u);
    EXPECT_EQ(cache.find(chain({1, 2, 9}), false).n_blocks, 2u);
    EXPECT_EQ(cache.find(chain({2, 3}), false).n_blocks, 2u) << "an identity contains what is before it";
    EXPECT_EQ(cache.find(chain({9, 1}), false).n_blocks, 0u);
    EXPECT_EQ(cache.find(chain({1, 2, 3}), false).n_idle, 0u);
    cache.release(blocks);
    EXPECT_EQ(cache.find(chain({1, 2, 3}), false).n_idle, 3u);
}

TEST(PrefixCache, ABlockIsFreeWhenTheLastHolderLetsGo) {
    PrefixCache cache(3);
    auto first = publish(cache, chain({1, 2}));
    std::vector<BlockId> second;
    cache.take(cache.find(chain({1, 2}), false), chain({1, 2}), second);
    EXPECT_EQ(second, first);
    EXPECT_EQ(cache.n_used(), 2u);
    cache.release(first);
    EXPECT_EQ(cache.n_used(), 2u);
    std::vector<BlockId> more;
    EXPECT_FALSE(cache.allocate(2, more));
    cache.release(second);
    EXPECT_EQ(cache.n_used(), 0u);
    EXPECT_TRUE(cache.allocate(3, more));
    EXPECT_EQ(cache.find(chain({1}), false).n_blocks, 0u);
}

TEST(PrefixCache, ForgetsWhatHasANameAlsoWhereNobodyHoldsIt) {
    PrefixCache cache(3);
    const auto blocks = publish(cache, chain({1, 2}));
    cache.release(blocks);
    cache.forget(identity_of(1));
    cache.forget(identity_of(9));
    EXPECT_EQ(cache.find(chain({1, 2}), false).n_blocks, 0u);
    const auto again = publish(cache, chain({1}));
    EXPECT_EQ(cache.find(chain({1, 2}), false).n_blocks, 2u);
    cache.release(again);
    std::vector<BlockId> all;
    EXPECT_TRUE(cache.allocate(3, all));
}

TEST(PrefixCache, GivesUpWhatWasNotUsedForLongestAndThereTheEndFirst) {
    PrefixCache cache(6);
    auto old = publish(cache, chain({1, 2, 3}));
    auto young = publish(cache, chain({11, 12, 13}));
    cache.release(young);
    cache.release(old);
    // Used again: now it is the younger one.
    std::vector<BlockId> again;
    cache.take(cache.find(chain({11, 12, 13}), false), chain({11, 12, 13}), again);
    cache.release(again);
    std::vector<BlockId> taken;
    ASSERT_TRUE(cache.allocate(2, taken));
    EXPECT_EQ(cache.find(chain({1, 2, 3}), false).n_blocks, 1u);
    ASSERT_TRUE(cache.allocate(2, taken));
    EXPECT_EQ(cache.find(chain({1, 2, 3}), false).n_blocks, 0u);
    EXPECT_EQ(cache.find(chain({11, 12, 13}), false).n_blocks, 2u);
}

TEST(PrefixCache, WhatIsReleasedFirstMakesWayFirst) {
    PrefixCache cache(4);
    const auto kept = publish(cache, chain({1, 2})), seldom = publish(cache, chain({11, 12}));
    cache.release(kept);
    cache.release_first(seldom);
    EXPECT_TRUE(cache.has(identity_of(12), false));
    std::vector<BlockId> taken;
    ASSERT_TRUE(cache.allocate(2, taken));
    EXPECT_EQ(std::set<BlockId>(taken.begin(), taken.end()), std::set<BlockId>(seldom.begin(), seldom.end()));
    EXPECT_FALSE(cache.has(identity_of(11), false));
    EXPECT_EQ(cache.find(chain({1, 2}), false).n_blocks, 2u);
    EXPECT_EQ(cache.n_idle(), 2u);
}

TEST(PrefixCache, TheSameContentTwiceIsNamedOnce) {
    PrefixCache cache(4);
    auto first = publish(cache, chain({1}));
    auto second = publish(cache, chain({1}));
    cache.release(second);
    EXPECT_EQ(cache.n_idle(), 0u) << "the copy has no name and is free at once";
    cache.release(first);
    EXPECT_EQ(cache.n_idle(), 1u);
}

TEST(PrefixCache, MergedBlocksAreForThoseThatMayRunMergedAndNothingPlainFollowsThem) {
    PrefixCache cache(8);
    publish(cache, chain({1}));
    publish(cache, chain({2}), true);
    publish(cache, chain({3}));
    EXPECT_EQ(cache.find(chain({1, 2, 3}), false).n_blocks, 1u);
    PrefixCache::Match match = cache.find(chain({1, 2, 3}), true);
    EXPECT_EQ(match.n_blocks, 2u);
    EXPECT_EQ(match.n_unmerged, 1u);
    publish(cache, chain({3}), true);
    EXPECT_EQ(cache.find(chain({1, 2, 3}), true).n_blocks, 3u);
}

TEST(PrefixCache, WhatIsForgottenIsNotFoundAndNotKept) {
    PrefixCache cache(2);
    auto blocks = publish(cache, chain({1, 2}));
    cache.forget(blocks);
    EXPECT_EQ(cache.find(chain({1, 2}), false).n_blocks, 0u);
    cache.release(blocks);
    EXPECT_EQ(cache.n_idle(), 0u);
    EXPECT_EQ(cache.n_free(), 2u);
}

TEST(PrefixCacheDeathTest, AbortsWhenABlockIsGivenBackTwice) {
    PrefixCache cache(2);
    std::vector<BlockId> blocks;
    ASSERT_TRUE(cache.allocate(1, blocks));
    cache.release(blocks);
    EXPECT_DEATH(cache.release(blocks), "CHECK");
}

// Against the obvious: who holds which block with which content. Nothing held is handed out again,
// what is found has the content that was asked for, and the counts add up.
TEST(PrefixCache, KeepsItsPromisesUnderRandomUse) {
    uint32_t seed = std::random_device{}();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    constexpr uint32_t kBlocks = 24;
    PrefixCache cache(kBlocks);
    struct Sequence {
        std::vector<BlockIdentity> prefix;
        std::vector<BlockId> blocks;
        uint32_t n_published = 0;
    };
    std::vector<Sequence> sequences;
    std::map<BlockId, uint32_t> content;  // number of the block's identity; 0: none yet
    uint64_t n_found = 0;
    for (uint32_t round = 0; round < 20000; ++round) {
        uint32_t what = random() % 4;
        if (what == 0) {
            Sequence sequence;
            uint32_t text = 1 + random() % 3, n = 1 + random() % 6;
            for (uint32_t i = 0; i < n; ++i) sequence.prefix.push_back(identity_of(text * 100 + i));
            auto match = cache.find(sequence.prefix, false);
            uint32_t n_free = cache.n_free();
            cache.take(match, sequence.prefix, sequence.blocks);
            ASSERT_EQ(cache.n_free(), n_free - match.n_idle);
            for (uint32_t i = 0; i < match.n_blocks; ++i) ASSERT_EQ(content.at(sequence.blocks[i]), text * 100 + i);
            n_found += match.n_blocks;
            sequence.n_published = match.n_blocks;
            sequences.push_back(std::move(sequence));
        } else if (what == 1 && !sequences.empty()) {
            Sequence& sequence = sequences[random() % sequences.size()];
            std::vector<BlockId> fresh;
            if (cache.allocate(random() % 3, fresh)) {
                for (BlockId block : fresh) {
                    for (const Sequence& other : sequences)
                        ASSERT_EQ(std::count(other.blocks.begin(), other.blocks.end(), block), 0);
                    content[block] = 0;
                    sequence.blocks.push_back(block);
                }
            }
        } else if (what == 2 && !sequences.empty()) {
            Sequence& sequence = sequences[random() % sequences.size()];
            uint32_t i = sequence.n_published;
            if (i < std::min(sequence.blocks.size(), sequence.prefix.size())) {
                std::memcpy(&content[sequence.blocks[i]], sequence.prefix[i].data(), 4);
                cache.publish(sequence.blocks[i], sequence.prefix[i], false);
                ++sequence.n_published;
            }
        } else if (what == 3 && !sequences.empty()) {
            size_t at = random() % sequences.size();
            cache.release(sequences[at].blocks);
            sequences.erase(sequences.begin() + ptrdiff_t(at));
        }
        std::set<BlockId> held;
        for (const Sequence& sequence : sequences) held.insert(sequence.blocks.begin(), sequence.blocks.end());
        ASSERT_EQ(cache.n_used(), held.size());
        ASSERT_EQ(cache.n_used() + cache.n_free(), kBlocks);
        for (BlockId block : held) {
            uint32_t n = 0;
            for (const Sequence& sequence : sequences)
                n += uint32_t(std::count(sequence.blocks.begin(), sequence.blocks.end(), block));
            ASSERT_EQ(cache.n_holders()[block], n);
        }
    }
    EXPECT_GT(n_found, 1000u);
}

}  // namespace
}  // namespace lorad::server::prefix_cache_test
