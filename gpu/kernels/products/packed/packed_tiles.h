// The tiles of matmul_packed, the best of some that were measured on an H200 (docs/lab/packed.md).
#pragma once

#include <array>
#include <cstdint>

namespace lorad::gpu {

struct PackedTile {
    uint32_t rows;       // of x
    uint32_t bands;      // of 16 rows of w, of a subgroup
    uint32_t subgroups;  // of a workgroup
    uint32_t steps;      // of 128 columns that are staged at once
    uint32_t held;       // steps whose codes are in flight
    uint32_t at_once;    // workgroups that a multiprocessor is expected to run side by side

    constexpr uint32_t columns() const { return bands * subgroups * 16; }
};
inline constexpr std::array kPackedTiles = {PackedTile{8, 1, 8, 4, 2, 2}, PackedTile{16, 2, 4, 2, 1, 2},
                                            PackedTile{32, 2, 4, 1, 1, 2}, PackedTile{64, 2, 8, 1, 1, 1}};

}  // namespace lorad::gpu
