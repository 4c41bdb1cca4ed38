// y[split][t][n] = sum over the split's k of x[t][k] * w[n][k] for 9 to 128 rows of x, w a packed part
// (weight_format.h), by the matrices of warpgroups. A program in NVIDIA's PTX ISA, sm_90a, as warpgroup_text.h.
//
// A tile of w has 16 rows, a band, for each warp of a workgroup; the tiles' bricks are dealt to workgroups in equal
// ranges (packed_deal.h). A warp's codes come straight into registers, each half of a brick as soon as the half before
// it in its registers is used; they become elements of the A matrix of the warpgroup there (PTX ISA,
// "wgmma.mma_async"), as in packed_rows_text.h. x is the B matrix of all warps: it lies in kMatrixFragments
// (activation_fragments.h), which bulk copies bring as they are, 64 columns at a time, into a ring in shared memory.
// Barriers there say when a slot is full, and when all warps are done with it; so warps may be as far apart as the ring
// allows, and some make elements while others' matrices work.
// Numbers are rounded as in matmul_packed.comp.
// Parameters: PackedParams. Grid: (workgroups, 64 rows of x each). Bytes: the part once, the next 64 rows have it from
// the L2 cache; x once for each tile from the caches.
#pragma once

#include <cstdint>
#include <string>

#include "gpu/kernels/formats/weight_format.h"
#include "gpu/kernels/products/activation_fragments.h"
#include "gpu/kernels/products/packed/packed_deal.h"

namespace lorad::gpu {

constexpr uint32_t kPackedWarpgroupRowsMax = 128;           // of x
constexpr uint32_t kPackedWarps = 16;                       // of a workgroup
constexpr uint32_t kXStepColumns = kMatrixFragmentColumns;  // of x in a slot of its ring

constexpr uint32_t kPackedUnitColumns = 256;  // of w, of what is dealt: a brick or two

// A program's constants, as the cache of kernels knows it by.
struct PackedWarpgroupConstants {
    uint32_t threads, weights, stride, row_blocks;
};

struct PackedWarpgroupProgram {
    WeightFormat format = WeightFormat::kQ8_0;  // of has_packed_rows()
    ScalarType type = ScalarType::kF16;         // of x
    uint32_t stride = 0;                        // of w and x, elements, a multiple of kPackedUnitColumns
    uint32_t row_blocks = 1;                    // of x, 16 rows each: those of a workgroup, up to kMatrixFragmentRows
    uint32_t warps = kPackedWarps;

    constexpr uint32_t rows() const { return row_blocks * 16; }
};

// Entry: "matmul".
std::string packed_warpgroup_text(const PackedWarpgroupProgram& program);

}  // namespace lorad::gpu
