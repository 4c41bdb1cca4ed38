// The engine's part in windows (model/exec/kv_groups.h): a sequence's blocks of the layers that see a window go back
// behind it, and there are always enough of them for those that run. A prefix is found where the window before its end
// is there; of what goes back, that before a border that others may come to stays longest.
#include "proto/base/check.h"
#include "server/engine/engine.h"

namespace lorad::server {

// [n]: true where all that a text sees behind the first n blocks of the match is there.
std::vector<bool> Engine::find_windows(const PrefixCache::Match& match, std::span<const BlockIdentity> prefix) const {
    std::vector<bool> is_there(match.n_blocks + 1, true);
    uint32_t first_there = 0;  // all from this one up to the one before n
    for (uint32_t n = 1; n <= match.n_blocks; ++n) {
        if (!windows_.has(prefix[n - 1], n > match.n_unmerged)) first_there = n;
        is_there[n] = first_there <= options_.groups.first_block(n * options_.limits.block_tokens);
    }
    return is_there;
}

// Takes the window's blocks beside those of the match, which the sequence has taken.
void Engine::take_windows(Sequence& sequence, const PrefixCache::Match& match) {
    CHECK(sequence.window_blocks.empty());
    const uint32_t first = std::min(options_.groups.first_block(sequence.n_computed), match.n_blocks);
    sequence.n_given_back = first;
    sequence.window_blocks.assign(first, 0);
    const PrefixCache::Match seen{.n_blocks = match.n_blocks - first,
                                  .n_unmerged = match.n_unmerged > first ? match.n_unmerged - first : 0};
    if (seen.n_blocks > 0) windows_.take(seen, sequence.request.prefix.blocks().subspan(first), sequence.window_blocks);
}

// Gives a sequence as many blocks of the window as it has others.
void Engine::allocate_windows(Sequence& sequence) {
    CHECK(windows_.allocate(static_cast<uint32_t>(sequence.blocks.size() - sequence.window_blocks.size()),
                            sequence.window_blocks));
}

// Gives back what no later row sees. The last row may be computed again, and so may all of a step that is in flight
// (Executor).
void Engine::give_back_windows(Sequence& sequence) {
    if (sequence.n_computed == 0 || sequence.last_step == 0) return;
    const uint32_t first =
        options_.groups.first_block(sequence.last_step > n_finished_ ? sequence.last_rows : sequence.n_computed - 1);
    const auto is_kept = [&](uint32_t block) {
        for (const uint32_t border : {kept_tokens(sequence), sequence.n_shared_tokens}) {
            if (block >= options_.groups.first_block(border) && block < border / options_.limits.block_tokens)
                return true;
        }
        return false;
    };
    for (uint32_t& block = sequence.n_given_back; block < first; ++block) {
        const std::span<const BlockId> one(&sequence.window_blocks[block], 1);
        is_kept(block) ? windows_.release(one) : windows_.release_first(one);
    }
}

}  // namespace lorad::server
