// The tiles of matmul_coopmat, and which of them a product takes: arithmetic only, nothing here touches a device.
// docs/PERFORMANCE.md has the measurements behind the table.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

#include "gpu/device.h"

namespace lorad::gpu {

// One workgroup's part of y and of a k step.
struct CoopmatTile {
    uint32_t rows, columns, k;
    uint32_t subgroups, subgroups_n;
    double factor;         // measured time over what the cost model expects, relative to the others
    bool late = false;     // see matmul_coopmat.comp
    bool whole_k = false;  // never split, and only taken where its tiles fill the device kWideRounds times
    bool pairs = false;    // two fill a multiprocessor, and one alone takes it as long as both
};
// The first one fits every matrix. Factors fitted to 83 products of 16 to 2,048 rows on an H200, then again, in chains
// without timestamps, to 35 of 8 to 64 rows in the shapes of 7B and 1.5B, two of 32 rows once more to 7B's: what is
// chosen takes 1.01 to 1.04 of the best candidate's time on average (`lorad-bench kernels --sweep` measures all
// candidates). Tiles of 96 and 144 columns are there because of how matrices divide: 37,888 columns are just under
// three tiles of 96 for each of 132 multiprocessors, but 2.24 of 128. Some are there twice, with a lower factor where k
// is never split: a matrix as wide as an output layer has so many workgroups one after the other that they hide each
// other's beginning and end.
inline constexpr std::array kCoopmatTiles = {
    CoopmatTile{16, 64, 64, 4, 4, 1.33},
    CoopmatTile{16, 64, 64, 4, 4, 0.93, false, true},
    CoopmatTile{16, 64, 128, 4, 4, 0.82},
    CoopmatTile{16, 128, 64, 8, 8, 1.34},
    CoopmatTile{16, 96, 128, 3, 3, 0.88},
    CoopmatTile{16, 96, 128, 3, 3, 0.81, false, true},
    CoopmatTile{32, 64, 64, 4, 4, 1.23},
    CoopmatTile{32, 128, 64, 8, 8, 1.05},
    CoopmatTile{32, 64, 128, 4, 4, 0.84},
    CoopmatTile{32, 128, 128, 4, 4, 0.87},
    CoopmatTile{32, 144, 128, 6, 3, 1.04},
    CoopmatTile{32, 144, 128, 6, 3, 0.84, false, true},
    CoopmatTile{64, 192, 64, 8, 4, 1.44},
    CoopmatTile{64, 128, 64, 4, 2, 0.99},
    CoopmatTile{64, 96, 64, 4, 2, 0.97},
    CoopmatTile{64, 96, 64, 4, 2, 0.88, false, true},
    CoopmatTile{96, 192, 64, 8, 4, 1.11},
    CoopmatTile{96, 128, 64, 4, 2, 0.88, true, false, true},
    CoopmatTile{128, 128, 64, 4, 2, 0.86, true, false, true},
    CoopmatTile{128, 192, 64, 8, 4, 1.02, true},
};

// 128x128, which takes x in fragments (activation_fragments.h) where rows are many.
inline constexpr uint32_t kFragmentsTile = 18;
inline constexpr double kFragmentsGain = 0.92;  // of the time with x in rows, from 256 rows on
static_assert(kCoopmatTiles[kFragmentsTile].rows == 128 && kCoopmatTiles[kFragmentsTile].columns == 128 &&
              kCoopmatTiles[kFragmentsTile].late);

inline constexpr uint32_t kWideRounds = 2;
inline constexpr uint32_t kMixedSplits = 8;  // at most, of the rows that are not whole

struct TileRequest {
    uint32_t n = 0, stride = 0, rows = 0;  // of the product; stride: k padded
    uint32_t max_splits = 1;
    bool gated = false;            // only tiles that can end in the activation
    bool batch_invariant = false;  // k cut alike for every number of rows
    bool in_fragments = false;     // kFragmentsTile takes x in fragments
};

struct TileChoice {
    uint32_t tile = 0;
    // bytes that the busiest multiprocessor could move in the same time
    double cost = std::numeric_limits<double>::infinity();
    uint32_t n_splits = 1;
    uint32_t k_per_split = 0;     // 0: no tile can do it, which happens to gated products alone
    uint32_t whole_rows = 0;      // as in MatmulPlan
    bool x_in_fragments = false;  // as in MatmulPlan
};

// The cheapest tile and the best number of splits. Where tiles of many rows fill the device a time and a bit, only the
// bit is split.
TileChoice choose_tile(const DeviceCapabilities& caps, const TileRequest& request);
// Returns true if each matrix of a gated product with this tile has 8 gates and 8 ups (kInterleaved in
// matmul_coopmat.comp), not only gates or only ups.
inline bool interleaves(const CoopmatTile& tile) { return tile.columns % (tile.subgroups_n * 32) != 0; }
// Returns true if a workgroup with this tile, which fits, can have the gate and the up rows of the same columns and
// gate them in shared memory.
bool gates(const CoopmatTile& tile, uint32_t subgroup_size);
// The matrix and the device can take the tile.
bool fits(const CoopmatTile& tile, uint32_t n, uint32_t stride, const DeviceCapabilities& caps);
// Workgroups with this tile that run side by side on the device, estimated by the registers of NVIDIA's
// multiprocessors; of one at most three, which is enough to keep the memory busy. Only speed depends on it.
uint32_t workgroups_at_once(const CoopmatTile& tile, const DeviceCapabilities& caps);
// Returns how many whole rows pay beside so many splits; 0: none. Only for tiles that come in pairs: with 128x192,
// alone on a multiprocessor, it does not pay.
uint32_t best_whole_rows(const CoopmatTile& tile, const TileRequest& request, uint32_t n_splits,
                         const DeviceCapabilities& caps);

}  // namespace lorad::gpu
