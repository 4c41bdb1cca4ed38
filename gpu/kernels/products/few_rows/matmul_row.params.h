#ifndef LORAD_GPU_KERNELS_MATMUL_ROW_PARAMS_H
#define LORAD_GPU_KERNELS_MATMUL_ROW_PARAMS_H

#include "gpu/kernels/products/matmul.params.h"

INTEROP_BEGIN

struct MatmulRowParams {
    // n_rows is not read. y: the sums, or of a gated product the activation, [y_stride] f32, of which n are gates.
    MatmulParams product;
    uint64_t norms;  // deferred_norm.h; 0 where no norm is deferred
    uint64_t bias;   // [n] f32, or 0; this and what follows, but for the last two, where the product ends in the stream
    uint64_t stream;  // [n] f32, the residual stream, updated in place
    uint64_t gamma;   // [n] f32
    uint64_t xn;      // [n] f32
    uint32_t hidden;  // elements of the deferred norm's row
    float eps;
};
INTEROP_SIZE(MatmulRowParams, 120);

INTEROP_END

#endif
