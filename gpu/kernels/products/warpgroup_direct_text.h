// y[split][t][n] = sum over the split's k of x[t][k] * w[n][k] by the matrix instructions of a warpgroup, as
// warpgroup_text.h, with the two matrices the other way round: w is the A matrix, straight from memory into registers,
// two steps of 128 of k ahead; x is the B matrix, a step's k of all rows in a slot of a ring in shared memory, which
// all warps of the workgroup read. So more of w is under way than a module may have of shared memory, and a
// multiprocessor runs one workgroup with as much of w as makes all of them equal. For up to 64 rows and matrices that
// one workgroup for each multiprocessor can share by splits.
//
// A warp has 16 neighbouring rows of w, a thread 16 bytes of two of them for 32 of k. Two matrix products take halves
// of these: the first the first two pairs of each 8 elements, the second the others, which is no order of k's own, but
// x has it, too (kRowFragments, activation_fragments.h). A matrix' registers have words of both rows in turns, so the
// words are moved right before a product, and the same loads are asked for again at once.
// Parameters: MatmulDirectParams. Grid: (1, splits, tiles of rows of w), neighbours beside each other.
#pragma once

#include <cstdint>
#include <string>

#include "gpu/kernels/products/matmul.params.h"
#include "gpu/kernels/products/matmul_plan.h"
#include "gpu/kernels/products/prefetch_pages.h"

namespace lorad::gpu {

constexpr uint32_t kDirectK = 128;               // elements of a step
constexpr uint32_t kDirectColumnBlock = 16;      // rows of w that a warp has
constexpr uint32_t kDirectRowsMax = 64;          // of x
constexpr uint32_t kDirectColumnBlocksMax = 12;  // of a workgroup: registers, of which a thread of three groups has 168

struct MatmulDirectParams {
    MatmulParams product;
    PrefetchPages prefetch;
};
static_assert(sizeof(MatmulDirectParams) == 88);

struct DirectProgram {
    uint32_t column_blocks = 1;          // of a workgroup, 1 to kDirectColumnBlocksMax
    uint32_t row_blocks = 1;             // of x, 16 rows each, 1 to 4
    ScalarType type = ScalarType::kF16;  // of w and x
    uint32_t stride = 0;                 // of w and x, elements, a multiple of kDirectK

    constexpr uint32_t groups() const { return (column_blocks + 3) / 4; }  // of 128 threads
    constexpr uint32_t threads() const { return 128 * groups(); }
};

// A program's constants, as the cache of kernels knows it by.
struct DirectConstants {
    uint32_t threads, column_blocks, stride, row_blocks;
};

// Entry: "matmul".
std::string warpgroup_direct_text(const DirectProgram& program);

}  // namespace lorad::gpu
