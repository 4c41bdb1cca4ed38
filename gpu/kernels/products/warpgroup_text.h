// y[split][t][n] = sum over the split's k of x[t][k] * w[n][k] by the matrix instructions of a warpgroup (128 threads),
// for which Vulkan's shaders have no words: a program in NVIDIA's PTX ISA, sm_90a (GH100: H100, H200), made here for a
// tile and a matrix and compiled by the driver (gpu/pipeline.h, KernelOptions::text; VK_NVX_binary_import). 16-bit w
// and x of one type, f32 sums. docs/adr/0015 says why it is there.
//
// x lies in fragments in the order kFragmentsByRows (activation_fragments.h) and goes straight into registers, one load
// of 16 bytes for each lane and 16 of k, as the A matrix of 64 rows. w is the B matrix: cp.async brings a step's k of a
// tile's rows of w from memory to a ring of slots in shared memory, past the registers, 16 bytes a thread, in the
// swizzle of 128 bytes that the instructions read. A tile's rows of w are cut into parts, a slot has one of them.
// A w of rows of k is read as it lies: a part of 64 columns of y has 64 rows of k in its slot, which the instructions
// take as a transposed B matrix.
// Parameters: MatmulParams, MatmulArgmaxParams, GatedLoraParams (gated_lora_text.h), or MatmulStackedParams, whose b
// and low are more k of w and x: behind the last split's own steps come those of a row tile's StackedWindow.
// Grid: (tiles of rows, splits, tiles of rows of w); where that goes to a multiprocessor see WarpgroupProgram::units.
#pragma once

#include <cstdint>
#include <string>

#include "gpu/kernels/products/gated_lora.params.h"
#include "gpu/kernels/products/matmul_plan.h"
#include "gpu/kernels/products/warpgroup_tiles.h"
#include "proto/base/rounding.h"

namespace lorad::gpu {

// For a program that adds its rows' adapters (gated_lora_text.h): the fewest steps of 128 of k, and the pieces of 8
// ranks that a workgroup shrinks.
constexpr uint32_t kGatedLoraStepsMin = 4;
constexpr uint32_t gated_lora_pieces(uint32_t rows, uint32_t workgroups) {
    return ceil_div(rows * 2 * kGatedLoraRanks / 8, workgroups);
}

struct WarpgroupProgram {
    WarpgroupTile tile;
    ScalarType type = ScalarType::kF16;  // of w, x and gated results
    uint32_t stride = 0;                 // of w and x, elements
    // > 0: w lies as [k][n], in rows of so many elements; parts of 64 columns and steps of 64 of k
    uint32_t w_columns = 0;
    // of x, 16 rows each, if there are fewer than a tile has; warps without rows do others' work again. 0: at least so
    // many
    uint32_t row_blocks = 0;
    // > 0: rows of gates in w, behind which the ups are; y_fragments is silu(gate) * up, in fragments
    uint32_t gated_rows = 0;
    uint32_t y_order = kFragmentsByColumns;  // of these (activation_fragments.h)
    // multiprocessors, each of which gets neighbouring tiles and splits: own_place() of matmul_coopmat.comp. 0: the
    // grid's order
    uint32_t units = 0;
    // > 0: adapters are stacked, of a row of b and of low: kStackedModuleColumns for each module; 128 rows of x and 64
    // of k
    uint32_t stacked_columns = 0;
    // a gated product with its rows' adapters (gated_lora_text.h), of 64 rows of x and 128 of k; all workgroups run at
    // once
    bool adds_lora = false;
    // of each row and tile of columns what sample_argmax's first stage says, instead of y: MatmulArgmaxParams
    bool argmax = false;
    // the grid has fewer workgroups than there are tiles of rows of w: each takes several neighbouring ones, with no
    // splits
    bool persistent = false;
};

// A program's constants, as the cache of kernels knows it by: WarpgroupProgram has what they mean.
struct WarpgroupConstants {
    uint32_t threads, tile, stride, row_blocks, gated_rows, y_order, units, persistent, stacked_columns, w_columns;
};

// Entry: "matmul".
std::string warpgroup_text(const WarpgroupProgram& program);

}  // namespace lorad::gpu
