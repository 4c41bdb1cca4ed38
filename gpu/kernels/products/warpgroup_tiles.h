// The tiles of products by warpgroups, and which of them a product takes: arithmetic only, nothing here touches a
// device.
// docs/PERFORMANCE.md, "Products by warpgroups", has the measurements behind the table.
#pragma once

#include <array>
#include <cstdint>

#include "gpu/kernels/products/matmul_plan.h"

namespace lorad::gpu {

// One workgroup's part of y: 64 rows of x for each of its groups of 128 threads, so many rows of w for all of them.
struct WarpgroupTile {
    uint32_t columns;  // rows of w
    uint32_t part;     // of them in one slot of shared memory, a multiple of 8 up to 256 that divides columns
    uint32_t slots;    // of the ring
    uint32_t groups;
    // elements of a step, which a slot holds: 64, or 128, whose pieces of 256 bytes of a row memory likes better
    uint32_t k;
    // workgroups that a multiprocessor runs side by side: a module gets 64 KiB of its shared memory, 1 KiB is the
    // driver's own for each
    uint32_t at_once;
    // that so many take for a step each, of an H100 (an H200's of overlapping ones, times 1.1, by which it is faster);
    // with one group memory is what takes it
    double step_us;
    // a part's product is issued while the one before goes on: one barrier for each, two slots fewer in flight, 32
    // registers more
    bool overlaps = false;

    constexpr uint32_t rows() const { return 64 * groups; }
    constexpr uint32_t threads() const { return 128 * groups; }
    constexpr uint32_t shared_bytes() const { return slots * part * k * 2; }
    // In a gated product each 16 of a part are eight gates, then the eight ups that belong to them; results are in
    // blocks of 16.
    constexpr bool may_gate() const { return part % 16 == 0 && columns % 32 == 0; }
};
inline constexpr std::array kWarpgroupTiles = {
    WarpgroupTile{128, 64, 3, 2, 64, 2, 1.12},       WarpgroupTile{256, 64, 6, 2, 64, 1, 1.04, true},
    WarpgroupTile{288, 48, 8, 2, 64, 1, 1.19, true}, WarpgroupTile{224, 56, 6, 2, 64, 1, 0.87, true},
    WarpgroupTile{128, 32, 3, 1, 128, 2, 3.00},      WarpgroupTile{128, 32, 2, 1, 128, 3, 4.66},
    WarpgroupTile{96, 32, 2, 1, 128, 3, 3.48},
};

// It can read a w that lies as [k][n] where a part is as wide as a row of shared memory, and has as many rows as a step
// has of k.
constexpr bool can_read_n_major(const WarpgroupTile& tile) { return tile.part == 64 && tile.k == 64; }

struct WarpgroupRequest {
    uint32_t n = 0, stride = 0, rows = 0;  // of the product, n of gates and ups together; stride: k padded
    uint32_t max_splits = 1;
    uint32_t multiprocessors = 1;
    bool gated = false;
    bool transposed = false;  // w lies as [k][n]
    // of choose_direct(): a multiprocessor has registers for other workgroups beside its own, as for a shrink's
    bool leaves_room = false;
};

struct WarpgroupChoice {
    uint32_t tile = 0;
    uint32_t n_splits = 1;
    uint32_t k_per_split = 0;  // 0: no tile fits
    double us = 0;             // expected
};

// Returns true if workgroups take several tiles each, so that no more of them are launched than run at once. With less
// than two tiles each, whoever is done first takes another. tiles: of rows of w. at_once: WarpgroupTile::at_once of all
// multiprocessors, 0 if unknown.
constexpr bool is_persistent(uint32_t tiles, uint32_t row_tiles, uint32_t n_splits, uint32_t at_once) {
    return row_tiles == 1 && n_splits == 1 && at_once > 0 && tiles >= 2 * at_once;
}

// The cheapest tile and number of splits. Up to 64 rows have tiles of one group, more have others.
WarpgroupChoice choose_warpgroup_tile(const WarpgroupRequest& request);
bool fits(const WarpgroupTile& tile, const WarpgroupRequest& request);

// A choice for warpgroup_direct_text.h: one workgroup for each multiprocessor, all with nearly the same amount of w.
struct DirectChoice {
    uint32_t column_blocks = 0;  // of a workgroup
    uint32_t n_splits = 1;
    // 0: there is none, or it would leave more than a fifth of the multiprocessors without work
    uint32_t k_per_split = 0;
    double us = 0;  // expected, of an H200
};
DirectChoice choose_direct(const WarpgroupRequest& request);

// A plan with this of kWarpgroupTiles; of the product rows, type and forms count.
MatmulPlan warpgroup_plan(uint32_t tile, const Product& product, uint32_t n_splits, uint32_t k_per_split);
// The same with so many blocks of 16 rows of w for each workgroup.
MatmulPlan direct_plan(uint32_t column_blocks, const Product& product, uint32_t n_splits, uint32_t k_per_split);
// WarpgroupProgram::row_blocks
uint32_t warpgroup_row_blocks(const MatmulPlan& plan);

}  // namespace lorad::gpu
