// Activations in fragments: in the order in which a product wants them (MatmulPlan::x_order). As large as the same
// buffer in rows, of which there are whole fragments; of a 16-bit type.
//   kFragmentsByColumns, kFragmentsByRows
//       16 rows x 16 columns, 512 bytes, which a product of many rows loads straight into its matrices' registers,
//       where rows would be staged in shared memory; the fragments of 16 rows one after the other. Lane 4 g + t of a
//       subgroup of 32 has 16 bytes: of row g columns 2t, 2t + 1, 2t + 8 and 2t + 9, then the same of row g + 8 (by
//       columns), a B matrix (matmul_coopmat.comp, FRAGMENTS); or of rows g and g + 8 columns 2t and 2t + 1, then of
//       both columns 2t + 8 and 2t + 9 (by rows), an A matrix (warpgroup_text.h). These are the elements that NVIDIA's
//       devices give a lane, in their order. Which they are is up to an implementation; a test at the start shows
//       whether a device has these.
//   kRowFragments
//       1 row x 32 columns, 64 bytes, where the row has them: pairs m = 0..3 of the fragment's eights of columns t =
//       0..3 at 16 m + 4 t. So a piece of 16 bytes has of each eight columns the m-th pair, which is what a lane's 16
//       bytes of a row of w are for two matrices (warpgroup_direct_text.h).
//   kBandFragments
//       8 rows x 128 columns, 2048 bytes, the fragments of 8 rows one after the other: 16 bytes are eight neighbours of
//       a row, those of columns 32 t + 8 q of row g at 512 q + 16 (4 g + t). So the lanes of a subgroup of 32 read
//       neighbouring pieces (packed_rows_text.h).
//   kMatrixFragments
//       64 rows x half of the pairs of 128 columns, 8192 bytes, the fragments of 64 rows one after the other; rows that
//       there are not have their place. Of 8 rows each, 1024 bytes, 8 cores of 8 rows x 8 columns, 16 bytes a row: core
//       c of the two halves' 16 has of each 32 columns the pair c, so that two cores have the columns that a lane's
//       codes are for one matrix (packed_warpgroup_text.h).
#ifdef __cplusplus
#pragma once
#endif
#ifndef LORAD_GPU_KERNELS_ACTIVATION_FRAGMENTS_H
#define LORAD_GPU_KERNELS_ACTIVATION_FRAGMENTS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

INTEROP_CONST kFragmentRows = 16;
INTEROP_CONST kFragmentColumns = 16;
INTEROP_CONST kFragmentBytes = kFragmentRows * kFragmentColumns * 2;
INTEROP_CONST kBandFragmentRows = 8;
INTEROP_CONST kBandFragmentColumns = 128;
INTEROP_CONST kBandFragmentBytes = kBandFragmentRows * kBandFragmentColumns * 2;

INTEROP_CONST kFragmentsByColumns = 0;
INTEROP_CONST kFragmentsByRows = 1;
INTEROP_CONST kRowFragments = 2;
INTEROP_CONST kBandFragments = 3;
INTEROP_CONST kMatrixFragments = 4;
INTEROP_CONST kMatrixFragmentRows = 64;
INTEROP_CONST kFragmentRowsMost = kMatrixFragmentRows;  // in any order
INTEROP_CONST kMatrixFragmentColumns = 64;
INTEROP_CONST kMatrixFragmentBytes = kMatrixFragmentRows * kMatrixFragmentColumns * 2;

// Whether rows of so many elements, of which there are whole fragments, can be in the order.
#ifdef __cplusplus
constexpr
#endif
    bool
    may_have_order(uint32_t stride, uint32_t order) {
    return order < kBandFragments || stride % kBandFragmentColumns == 0;
}

// From a pair of columns, of which the first is even, to the next pair of the same 8 columns.
#ifdef __cplusplus
constexpr
#endif
    uint32_t
    fragment_pair_bytes(uint32_t order) {
    return order == kBandFragments ? 4 : order == kMatrixFragments ? 128 : 16;
}

// The byte offset of an element. stride: elements of a row, whole fragments.
#ifdef __cplusplus
constexpr
#endif
    uint64_t
    fragment_offset(uint32_t row, uint32_t column, uint32_t stride, uint32_t order) {
    if (order == kBandFragments)
        return uint64_t(row / kBandFragmentRows * (stride / kBandFragmentColumns) + column / kBandFragmentColumns) *
                   kBandFragmentBytes +
               column % 32 / 8 * 512 + row % 8 * 64 + column % 128 / 32 * 16 + column % 8 * 2;
    if (order == kMatrixFragments)
        return uint64_t(row / kMatrixFragmentRows * (stride / kMatrixFragmentColumns) + column / 128 * 2 +
                        column % 32 / 16) *
                   kMatrixFragmentBytes +
               row % kMatrixFragmentRows / 8 * 1024 + column % 16 / 2 * fragment_pair_bytes(order) + row % 8 * 16 +
               column % 128 / 32 * 4 + column % 2 * 2;
    if (order == kRowFragments)
        return 2 * uint64_t(row) * stride + column / 32 * 64 + column % 8 / 2 * fragment_pair_bytes(order) +
               column % 32 / 8 * 4 + column % 2 * 2;
    const uint32_t to_lower_rows = order == kFragmentsByRows ? 4 : 8,
                   to_right_columns = order == kFragmentsByRows ? 8 : 4;
    return uint64_t(row / kFragmentRows * (stride / kFragmentColumns) + column / kFragmentColumns) * kFragmentBytes +
           row % 8 * 64 + column % 8 / 2 * fragment_pair_bytes(order) + row % 16 / 8 * to_lower_rows +
           column % 16 / 8 * to_right_columns + column % 2 * 2;
}

INTEROP_END

#endif
