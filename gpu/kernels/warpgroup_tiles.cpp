#include "gpu/kernels/warpgroup_tiles.h"

#include <algorithm>
#include <limits>

namespace lorad::gpu {
namespace {

constexpr uint32_t kStep = 64;             // elements of k
constexpr double kBeginEndSteps = 2.4;     // what a workgroup's beginning and end take, in steps
constexpr double kPartialBytesPerUs = 4e6; // sums of another split, written and read

constexpr uint32_t ceil_of(uint32_t value, uint32_t divisor) { return (value + divisor - 1) / divisor; }

}  // namespace

bool fits(const WarpgroupTile& tile, uint32_t n, bool gated) {
    return ceil_of(n, kStep) * kStep >= tile.columns && (!gated || tile.gates());
}

WarpgroupChoice choose_warpgroup_tile(const WarpgroupWish& wish) {
    WarpgroupChoice best;
    best.us = std::numeric_limits<double>::infinity();
    for (uint32_t i = 0; i < kWarpgroupTiles.size(); i++) {
        const WarpgroupTile& tile = kWarpgroupTiles[i];
        if (!fits(tile, wish.n, wish.gated)) continue;
        const uint32_t steps = wish.stride / kStep, slots = wish.multiprocessors * tile.at_once;
        const uint32_t tiles = ceil_of(wish.n, tile.columns) * ceil_of(wish.rows, tile.rows());
        for (uint32_t n_splits = 1; n_splits <= std::min(wish.max_splits, steps); n_splits++) {
            const uint32_t split_steps = ceil_of(steps, n_splits);
            if (ceil_of(steps, split_steps) != n_splits) continue;
            const double partials = 8.0 * (n_splits - 1) * wish.rows * wish.n / kPartialBytesPerUs;
            const double us = ceil_of(tiles * n_splits, slots) * (split_steps + kBeginEndSteps) * tile.step_us + partials;
            if (us < best.us) best = {i, n_splits, split_steps * kStep, us};
        }
    }
    return best;
}

}  // namespace lorad::gpu
