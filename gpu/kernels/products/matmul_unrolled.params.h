#ifndef LORAD_GPU_KERNELS_MATMUL_UNROLLED_PARAMS_H
#define LORAD_GPU_KERNELS_MATMUL_UNROLLED_PARAMS_H

#include "gpu/kernels/interop.h"
#include "gpu/kernels/products/matmul.params.h"

INTEROP_BEGIN

// matmul_unrolled; w, x and y as in matmul, x in f32.
struct MatmulUnrolledParams {
    MatmulParams product;
    uint32_t digits[8];  // 0 to 7: see the shader
};
INTEROP_SIZE(MatmulUnrolledParams, 104);

INTEROP_END

#endif
