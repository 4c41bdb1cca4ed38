#ifndef LORAD_GPU_KERNELS_MATMUL_PARAMS_H
#define LORAD_GPU_KERNELS_MATMUL_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

// The same for every matmul variant.
struct MatmulParams {
    uint64_t n_rows;  // address of the u32 row count
    uint64_t w;       // [n_padded][w_stride] of the weight type, padding zero
    uint64_t x;       // [t][x_stride] of the activation type; x_stride == w_stride, elements k.. are zero
    uint64_t y;       // [split][t][y_stride] f32
    uint32_t n;             // columns of y that are wanted; up to n_padded may be written
    uint32_t k;
    uint32_t w_stride;      // elements, a multiple of 64
    uint32_t x_stride;      // elements
    uint32_t y_stride;      // elements, n_padded
    uint32_t split_stride;  // elements between the results of two splits
    uint32_t k_per_split;   // elements, a multiple of 64; the last split may be shorter
    uint32_t pad;
};
INTEROP_SIZE(MatmulParams, 64);

INTEROP_END

#endif
