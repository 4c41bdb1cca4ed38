#ifndef LORAD_GPU_KERNELS_MATMUL_RESIDUAL_PARAMS_H
#define LORAD_GPU_KERNELS_MATMUL_RESIDUAL_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct MatmulResidualParams {
    uint64_t n_rows;  // address of the u32 row count
    uint64_t w;       // [n][w_stride] of a 16-bit type, padding zero
    uint64_t x;       // [t][w_stride] of the same type; kDeferredRows rows may be read
    uint64_t bias;    // [n] f32, or 0
    // [t][stream_stride] f32, the residual stream, updated in place; kDeferredRows rows may be read, too
    uint64_t stream;
    uint64_t gamma;  // [n] f32
    // [t][xn_stride] of the same type; elements n.. are left as they are: zero, from the step's first norm
    uint64_t xn;
    uint64_t norms;          // deferred_norm.h
    uint32_t w_stride;       // elements, a multiple of 64
    uint32_t stream_stride;  // elements
    uint32_t xn_stride;      // elements
    uint32_t pad;
};
INTEROP_SIZE(MatmulResidualParams, 80);

INTEROP_END

#endif
