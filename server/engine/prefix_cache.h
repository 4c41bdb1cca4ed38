// The KV blocks of the engine: which are held, by how many sequences, and which full ones may be
// used again because their identity is known (prefix_identity.h).
//
//              allocate                   publish
//    free ---------------> held, unnamed ---------> held, named --release--> idle (named, nobody's)
//     ^                         |                        ^                     |     |
//     +---------release---------+                        +---------take--------+     |
//     +------------------------------- allocate, when nothing else is free ----------+
//
// A block is named once all of its tokens are known and the step that computes the last of them has
// been submitted: steps run in order, so whoever takes it reads what that step has written. Named
// blocks are never written again. Idle ones are given up in the order in which they were last used,
// of one sequence the last first, so that what is left of a prefix begins at its beginning.
//
// Rows on merged weights have other bits than the same rows with LoRA (both within the tolerance of
// their number format). A block that holds such a row, or follows one that does, is named as merged;
// only requests that may run merged find it.
//
// Bookkeeping only; engine thread only.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <unordered_map>
#include <vector>

#include "model/exec/kv_cache.h"
#include "server/engine/prefix_identity.h"

namespace lorad::server {

class PrefixCache {
  public:
    explicit PrefixCache(uint32_t n_blocks);

    // The longest run of named blocks from the first identity on; unmerged blocks never follow merged ones.
    struct Match {
        uint32_t n_blocks = 0;
        uint32_t n_idle = 0;      // of n_blocks, held by nobody: taking them leaves fewer to allocate
        uint32_t n_unmerged = 0;  // of n_blocks, from the first on: computed without merged weights
    };
    Match find(std::span<const BlockIdentity> prefix, bool or_merged) const;
    // Holds the blocks of a match of the same prefix, found since the last change; appends them.
    void take(const Match& match, std::span<const BlockIdentity> prefix, std::vector<BlockId>& to);

    // Appends n blocks of no content, or none and false.
    bool allocate(uint32_t n, std::vector<BlockId>& to);
    // Names a held block. Where another block has that name already this one stays unnamed.
    void publish(BlockId block, const BlockIdentity& identity, bool is_merged);
    bool has(const BlockIdentity& identity, bool is_merged) const { return index_.contains({identity, is_merged}); }
    // Blocks of one sequence, in the order of its tokens. With _first they make way before all others that are idle.
    void release(std::span<const BlockId> blocks) { release(blocks, false); }
    void release_first(std::span<const BlockId> blocks) { release(blocks, true); }
    // The content of these held blocks must not be used again: they lose their names.
    void forget(std::span<const BlockId> blocks);
    // The same for the block of this name, even if others hold it.
    void forget(const BlockIdentity& identity);

    uint32_t n_blocks() const { return static_cast<uint32_t>(blocks_.size()); }
    uint32_t n_free() const { return pool_.n_free() + n_idle_; }  // blocks that allocate() can give
    uint32_t n_used() const { return n_blocks() - n_free(); }
    uint32_t n_idle() const { return n_idle_; }
    std::span<const uint32_t> n_holders() const { return n_holders_; }  // by block

  private:
    struct Name {
        BlockIdentity identity;
        bool is_merged = false;
        bool operator==(const Name&) const = default;
    };
    struct NameHash {
        // The digest's own bits are as good as a hash.
        size_t operator()(const Name& name) const {
            size_t hash = 0;
            std::memcpy(&hash, name.identity.data(), sizeof hash);
            return hash + name.is_merged;
        }
    };
    static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
    struct Block {
        const Name* name = nullptr;              // the key in index_
        uint32_t before = kNone, after = kNone;  // neighbours among the idle ones
    };

    void release(std::span<const BlockId> blocks, bool makes_way);
    void make_idle(BlockId block);
    void make_first_idle(BlockId block);
    void leave_idle(BlockId block);
    void unname(BlockId block);

    model::BlockPool pool_;  // blocks that are neither held nor idle are free there
    std::vector<Block> blocks_;
    std::vector<uint32_t> n_holders_;
    std::unordered_map<Name, BlockId, NameHash> index_;
    uint32_t first_idle_ = kNone, last_idle_ = kNone;  // first: not used for longest
    uint32_t n_idle_ = 0;
};

}  // namespace lorad::server
