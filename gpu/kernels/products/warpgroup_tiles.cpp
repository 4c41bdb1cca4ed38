#include "gpu/kernels/products/warpgroup_tiles.h"

#include <algorithm>
#include <limits>

#include "gpu/kernels/products/warpgroup_direct_text.h"
#include "proto/base/rounding.h"

namespace lorad::gpu {
namespace {

constexpr double kBeginEnd = 2.4 * 64;      // what a workgroup's beginning and end take, in elements of k
constexpr double kPartialBytesPerUs = 4e6;  // sums of another split, written and read

// A last round that does not fill the device: a workgroup alone on a multiprocessor is faster than beside others, but
// not by as much as these are fewer. With one at once there is more of the L2 cache for each, and chips that are not
// all busy have a higher clock.
constexpr double kLastRoundMin[] = {0.8, 0.6, 0.5};  // by WarpgroupTile::at_once
// For tiles with more groups than one: reading w from memory, not from the L2 cache, adds this share of the time that
// its bytes take to a step's time.
constexpr double kMemoryBytesPerUs = 4.5e6, kMemoryShare = 0.42, kOverlappingMemoryShare = 0.6;

double rounds_of(uint32_t workgroups, uint32_t slots, uint32_t at_once) {
    const uint32_t left = workgroups % slots;
    if (left == 0) return workgroups / slots;
    return workgroups / slots + std::max(static_cast<double>(left) / slots, kLastRoundMin[at_once - 1]);
}

// A workgroup with w straight in registers, of an H200.
constexpr double kDirectBeginEnd = 4.5;      // us
constexpr double kDirectBlockUs = 0.148;     // for a step of 16 rows of w
constexpr uint32_t kDirectBlocksWanted = 6;  // with fewer too little is under way: a tenth more
// Two groups of threads, of four blocks each, leave registers for three workgroups of lora_shrink, three for one: qkv
// of 7B in steps of 64 rows of 64 adapters (docs/PERFORMANCE.md, "A product that shrinks and expands"). How much slower
// a product alone may be for that.
constexpr uint32_t kDirectBlocksBesideMax = 8;
constexpr double kDirectRoomMax = 1.05;
constexpr double kDirectStepUs = 0.6;    // at least; four are the fewest that were measured
constexpr double kDirectShareMin = 0.8;  // of what the multiprocessors could do

DirectChoice choose_direct_of(const WarpgroupRequest& request, uint32_t column_blocks_max) {
    DirectChoice best;
    best.us = std::numeric_limits<double>::infinity();
    if (request.rows > kDirectRowsMax || request.stride % kDirectK != 0) return best;
    const uint32_t blocks = ceil_div(request.n, kDirectColumnBlock), steps = request.stride / kDirectK;
    for (uint32_t wanted = 1; wanted <= std::min({request.max_splits, steps, request.multiprocessors}); ++wanted) {
        const uint32_t split_steps = ceil_div(steps, wanted), n_splits = ceil_div(steps, split_steps);
        const uint32_t column_blocks = ceil_div(blocks, request.multiprocessors / n_splits);
        if (column_blocks > column_blocks_max) continue;
        const double share = static_cast<double>(blocks) * steps /
                             (static_cast<double>(request.multiprocessors) * column_blocks * split_steps);
        const double partials = 8.0 * (n_splits - 1) * request.rows * request.n / kPartialBytesPerUs;
        const double block_us = column_blocks < kDirectBlocksWanted ? 1.1 * kDirectBlockUs : kDirectBlockUs;
        const double us = kDirectBeginEnd + split_steps * std::max(column_blocks * block_us, kDirectStepUs) + partials;
        if (share >= kDirectShareMin && us < best.us) best = {column_blocks, n_splits, split_steps * kDirectK, us};
    }
    return best;
}

}  // namespace

bool fits(const WarpgroupTile& tile, const WarpgroupRequest& request) {
    const bool has_rows = (request.rows <= 64) == (tile.groups == 1);
    return has_rows && (tile.may_gate() || !request.gated) && (can_read_n_major(tile) || !request.transposed) &&
           request.stride % tile.k == 0 && ceil_div(request.n, 64) * 64 >= tile.columns;
}

WarpgroupChoice choose_warpgroup_tile(const WarpgroupRequest& request) {
    WarpgroupChoice best;
    best.us = std::numeric_limits<double>::infinity();
    for (uint32_t i = 0; i < kWarpgroupTiles.size(); ++i) {
        const WarpgroupTile& tile = kWarpgroupTiles[i];
        if (!fits(tile, request)) continue;
        const uint32_t steps = request.stride / tile.k, slots = request.multiprocessors * tile.at_once;
        const uint32_t column_tiles = ceil_div(request.n, tile.columns),
                       row_tiles = ceil_div(request.rows, tile.rows());
        const double share = tile.groups == 1 ? 0 : tile.overlaps ? kOverlappingMemoryShare : kMemoryShare;
        const double memory = share * 2.0 * request.n * request.stride / kMemoryBytesPerUs;
        for (uint32_t n_splits = 1; n_splits <= std::min(request.max_splits, steps); ++n_splits) {
            const uint32_t split_steps = ceil_div(steps, n_splits);
            if (ceil_div(steps, split_steps) != n_splits) continue;
            const double partials = 8.0 * (n_splits - 1) * request.rows * request.n / kPartialBytesPerUs;
            const uint32_t workgroups = column_tiles * row_tiles * n_splits;
            const double rounds = is_persistent(column_tiles, row_tiles, n_splits, slots)
                                      ? ceil_div(workgroups, slots)
                                      : rounds_of(workgroups, slots, tile.at_once);
            const double us = rounds * (split_steps + kBeginEnd / tile.k) * tile.step_us + partials + memory;
            if (us < best.us) best = {i, n_splits, split_steps * tile.k, us};
        }
    }
    return best;
}

DirectChoice choose_direct(const WarpgroupRequest& request) {
    const DirectChoice any = choose_direct_of(request, kDirectColumnBlocksMax);
    if (!request.leaves_room) return any;
    const DirectChoice narrow = choose_direct_of(request, kDirectBlocksBesideMax);
    return narrow.k_per_split != 0 && narrow.us <= kDirectRoomMax * any.us ? narrow : any;
}

}  // namespace lorad::gpu
