#include "server/engine/prefix_cache.h"

#include "proto/base/check.h"

namespace lorad::server {

PrefixCache::PrefixCache(uint32_t n_blocks) : pool_(n_blocks), blocks_(n_blocks), n_holders_(n_blocks, 0) {
    index_.reserve(n_blocks);
}

PrefixCache::Match PrefixCache::find(std::span<const BlockIdentity> prefix, bool or_merged) const {
    Match match;
    for (const BlockIdentity& identity : prefix) {
        auto found = index_.end();
        if (match.n_unmerged == match.n_blocks) {
            found = index_.find({identity, false});
            if (found != index_.end()) ++match.n_unmerged;
        }
        if (found == index_.end() && or_merged) found = index_.find({identity, true});
        if (found == index_.end()) break;
        ++match.n_blocks;
        if (n_holders_[found->second] == 0) ++match.n_idle;
    }
    return match;
}

void PrefixCache::take(const Match& match, std::span<const BlockIdentity> prefix, std::vector<BlockId>& to) {
    for (uint32_t i = 0; i < match.n_blocks; ++i) {
        auto found = index_.find({prefix[i], i >= match.n_unmerged});
        CHECK(found != index_.end());
        if (n_holders_[found->second]++ == 0) leave_idle(found->second);
        to.push_back(found->second);
    }
}

bool PrefixCache::allocate(uint32_t n, std::vector<BlockId>& to) {
    if (n > n_free()) return false;
    while (pool_.n_free() < n) {
        BlockId oldest = first_idle_;
        unname(oldest);
        leave_idle(oldest);
        pool_.release(oldest);
    }
    size_t first = to.size();
    CHECK(pool_.allocate(n, to));
    for (size_t i = first; i < to.size(); ++i) n_holders_[to[i]] = 1;
    return true;
}

void PrefixCache::publish(BlockId block, const BlockIdentity& identity, bool is_merged) {
    CHECK(n_holders_.at(block) > 0 && blocks_[block].name == nullptr);
    auto [named, is_new] = index_.emplace(Name{identity, is_merged}, block);
    if (is_new) blocks_[block].name = &named->first;
}

void PrefixCache::release(std::span<const BlockId> blocks, bool makes_way) {
    for (size_t i = blocks.size(); i-- > 0;) {
        BlockId block = blocks[i];
        CHECK(n_holders_.at(block) > 0);
        if (--n_holders_[block] > 0) continue;
        if (blocks_[block].name != nullptr) {
            makes_way ? make_first_idle(block) : make_idle(block);
        } else {
            pool_.release(block);
        }
    }
}

void PrefixCache::forget(std::span<const BlockId> blocks) {
    for (BlockId block : blocks) {
        CHECK(n_holders_.at(block) > 0);
        unname(block);
    }
}

void PrefixCache::forget(const BlockIdentity& identity) {
    for (const bool is_merged : {false, true}) {
        const auto found = index_.find({identity, is_merged});
        if (found != index_.end()) unname(found->second);
    }
}

void PrefixCache::make_idle(BlockId block) {
    blocks_[block].before = last_idle_;
    blocks_[block].after = kNone;
    (last_idle_ == kNone ? first_idle_ : blocks_[last_idle_].after) = block;
    last_idle_ = block;
    ++n_idle_;
}

void PrefixCache::make_first_idle(BlockId block) {
    blocks_[block].before = kNone;
    blocks_[block].after = first_idle_;
    (first_idle_ == kNone ? last_idle_ : blocks_[first_idle_].before) = block;
    first_idle_ = block;
    ++n_idle_;
}

void PrefixCache::leave_idle(BlockId block) {
    auto [before, after] = std::pair(blocks_[block].before, blocks_[block].after);
    (before == kNone ? first_idle_ : blocks_[before].after) = after;
    (after == kNone ? last_idle_ : blocks_[after].before) = before;
    blocks_[block].before = blocks_[block].after = kNone;
    --n_idle_;
}

void PrefixCache::unname(BlockId block) {
    if (blocks_[block].name == nullptr) return;
    index_.erase(index_.find(*blocks_[block].name));
    blocks_[block].name = nullptr;
}

}  // namespace lorad::server
