// An RMS norm whose factors are applied to the sums of the product that reads its result, which are linear in it: the
// product before it ends in the residual stream (matmul_residual.comp) and writes xn = stream * gamma * scale and, for
// each tile of columns, the sum of the stream's squares; the product behind it multiplies its sums by inverse / scale,
// where inverse = 1 / sqrt(mean of squares + eps). So no dispatch is between the two.
// A row's scale, a 16th of the inverse of the norm before, keeps xn within the range of f16 (bf16 has that of f32): a
// row of 3,600 columns whose squares are all in one has 60 there where its mean square is 1, so xn holds a stream that
// grows 17,000-fold from one norm to the next, times gamma; beyond, it is cut off. One that shrinks a hundredfold has
// values of 6e-4, ten times what f16 holds with all its bits.
// Without matrix units this is of one row (matmul_row.comp): xn is f32 and has no scale, so of the parts below there
// are the squares alone, [tile].
#ifdef __cplusplus
#pragma once
#endif
#ifndef LORAD_GPU_KERNELS_DEFERRED_NORM_H
#define LORAD_GPU_KERNELS_DEFERRED_NORM_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

INTEROP_CONST kDeferredRows = 16;       // of a step at most
INTEROP_CONST kDeferredColumnsMin = 8;  // of a tile
INTEROP_CONST kDeferredMargin = 16;     // a scale is the inverse of the norm before divided by this

// The parts of what MatmulResidualParams::norms points to, in bytes, all f32. No dispatch reads what it writes, and a
// barrier is between any two.
// [kDeferredRows], of the last norm: from rms_norm or one workgroup of the product behind, for matmul_residual
INTEROP_CONST kDeferredInverse = 0;
// [kDeferredRows], which xn has: from matmul_residual, for the product behind
INTEROP_CONST kDeferredScale = kDeferredRows * 4;
INTEROP_CONST kDeferredSquares = 2 * kDeferredRows * 4;  // [tile][deferred_norm_rows()], sums, the same way

#ifdef __cplusplus
// Rows that kernels are made for, in a step with this row bucket.
constexpr uint32_t deferred_norm_rows(uint32_t row_bucket) {
    return row_bucket <= kDeferredRows / 2 ? kDeferredRows / 2 : kDeferredRows;
}
constexpr uint64_t deferred_norm_bytes(uint32_t hidden) {
    return kDeferredSquares + uint64_t{hidden} / kDeferredColumnsMin * kDeferredRows * 4;
}
#endif

INTEROP_END

#endif
