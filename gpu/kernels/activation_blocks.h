// Activations in blocks: what a product of many rows loads straight into the registers of its matrices, 16 neighbouring bytes for each lane, where rows
// would be staged in shared memory (matmul_coopmat.comp, BLOCKS). As large as the same buffer in rows, of which there are whole blocks.
//   block  16 rows x 16 columns of a 16-bit type, 512 bytes; the blocks of 16 rows one after the other
//   lane   4 g + t of a subgroup of 32 has 16 bytes: of row g columns 2t, 2t + 1, 2t + 8 and 2t + 9, then the same of row g + 8 (kBlocksByColumns), which is
//          a B matrix; or of rows g and g + 8 columns 2t and 2t + 1, then of both columns 2t + 8 and 2t + 9 (kBlocksByRows), an A matrix
// These are the elements that NVIDIA's devices give a lane, in their order. Which they are is up to an implementation; a test at the start
// shows whether a device has these.
#ifdef __cplusplus
#pragma once
#endif
#ifndef LORAD_GPU_KERNELS_ACTIVATION_BLOCKS_H
#define LORAD_GPU_KERNELS_ACTIVATION_BLOCKS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

INTEROP_CONST kBlockRows = 16;
INTEROP_CONST kBlockColumns = 16;
INTEROP_CONST kBlockBytes = kBlockRows * kBlockColumns * 2;
INTEROP_CONST kBlockPairBytes = 16;  // from a pair of columns, of which the first is even, to the next pair of the same 8 columns

// Orders of the four pairs of a lane.
INTEROP_CONST kBlocksByColumns = 0;
INTEROP_CONST kBlocksByRows = 1;

// Where an element lies, in bytes. stride: elements of a row.
#ifdef __cplusplus
constexpr
#endif
uint64_t block_offset(uint32_t row, uint32_t column, uint32_t stride, uint32_t order) {
    const uint32_t to_lower_rows = order == kBlocksByRows ? 4 : 8, to_right_columns = order == kBlocksByRows ? 8 : 4;
    return uint64_t(row / kBlockRows * (stride / kBlockColumns) + column / kBlockColumns) * kBlockBytes + row % 8 * 64 + column % 8 / 2 * kBlockPairBytes +
           row % 16 / 8 * to_lower_rows + column % 16 / 8 * to_right_columns + column % 2 * 2;
}

INTEROP_END

#endif
