#ifndef LORAD_GPU_KERNELS_MATMUL_UNROLLED_PARAMS_H
#define LORAD_GPU_KERNELS_MATMUL_UNROLLED_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

// matmul_unrolled; w, x and y as in MatmulParams, x in f32.
struct MatmulUnrolledParams {
    uint64_t n_rows;  // address of the u32 row count
    uint64_t w;
    uint64_t x;
    uint64_t y;
    uint32_t w_stride;      // elements
    uint32_t x_stride;      // elements
    uint32_t y_stride;      // elements
    uint32_t split_stride;  // elements between the results of two splits
    uint32_t digits[16];    // 0 to 15: see the shader
    uint32_t never;         // 0, which the compiler does not know
    uint32_t pad;
};
INTEROP_SIZE(MatmulUnrolledParams, 120);

INTEROP_END

#endif
