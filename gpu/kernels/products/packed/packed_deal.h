// How products deal the bricks of a packed part (weight_format.h): all of a band of 16 rows of w, or of a tile of
// several such bands side by side, one tile behind the other, in equal ranges to the warps or workgroups of the grid,
// so that all end together. Where a range ends within a tile, the tile's sums are in as many splits as ranges have some
// of it, and the range with the tile's end writes zeros to the splits that are left.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gpu/kernels/products/matmul.params.h"
#include "proto/base/rounding.h"

namespace lorad::gpu {

// Range i of all has the units from i * units / ranges on, up to those of the next.
struct PackedDeal {
    uint32_t units = 0;
    uint32_t unit_bricks = 0;  // of a tile's k: 1, or all where there is one split
    uint32_t ranges = 0;       // at most `units`

    constexpr uint32_t longest() const { return ceil_div(units, ranges) * unit_bricks; }
};

// Of the programs in text whose ranges these are.
struct PackedParams {
    MatmulParams product;  // k_per_split and w_stride are not read
    PackedDeal deal;
    uint32_t n_splits;
};
static_assert(sizeof(PackedParams) == 88);

#define PACKED_PARAM(member) offsetof(PackedParams, member)

// As few ranges as have no more units each than `most` would: ranges are equal where that can be.
constexpr uint32_t equal_ranges(uint32_t units, uint32_t most) { return ceil_div(units, ceil_div(units, most)); }

// The splits that a product needs, `bricks` in each of its tiles, for all ranges to be equal: as many as share a tile
// at most. 1 where whole tiles make them about equal.
constexpr uint32_t packed_splits(uint32_t tiles, uint32_t bricks, uint32_t max_splits, uint32_t most_ranges) {
    const uint32_t units = tiles * bricks;
    if (max_splits == 1 || bricks == 1 || units > 0.95 * most_ranges * ceil_div(tiles, most_ranges) * bricks) return 1;
    const uint32_t ranges = equal_ranges(units, most_ranges), of_each = units / ranges;
    const bool are_aligned = units % ranges == 0 && bricks % of_each == 0;
    return std::min(max_splits, are_aligned ? bricks / of_each : ceil_div(bricks - 1, of_each) + 1);
}

// To at most `most_ranges`, so few that no tile is shared by more than n_splits of them.
constexpr PackedDeal deal_bricks(uint32_t tiles, uint32_t bricks, uint32_t n_splits, uint32_t most_ranges) {
    const uint32_t units = tiles * bricks;
    if (n_splits == 1) return {tiles, bricks, equal_ranges(tiles, most_ranges)};
    const uint32_t ranges = equal_ranges(units, most_ranges), of_each = units / ranges;
    if (units % ranges == 0 && bricks % of_each == 0 && bricks / of_each <= n_splits) return {units, 1, ranges};
    const uint32_t at_least = std::max(ceil_div(bricks - 1, n_splits - 1), 1u);
    const uint32_t unaligned = std::min(ranges, std::max(units / at_least, 1u));
    // Each tile is shared by n_splits.
    const uint32_t aligned = n_splits <= bricks ? tiles * n_splits : 0;
    return {units, 1, aligned <= most_ranges ? std::max(aligned, unaligned) : unaligned};
}

}  // namespace lorad::gpu
