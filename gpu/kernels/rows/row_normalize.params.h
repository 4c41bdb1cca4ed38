#ifndef LORAD_GPU_KERNELS_ROW_NORMALIZE_PARAMS_H
#define LORAD_GPU_KERNELS_ROW_NORMALIZE_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct RowNormalizeParams {
    uint64_t x;      // [t][x_stride] of the given type
    uint64_t y;      // [t][y_stride] of the same type; may be x
    uint64_t gamma;  // [n_columns] f32; softmax does without
    uint64_t beta;   // [n_columns] f32; layer norm alone
    uint32_t n_columns;
    uint32_t x_stride;  // elements, multiples of 8
    uint32_t y_stride;
    float value;  // softmax: factor before the exponential; norms: epsilon
};
INTEROP_SIZE(RowNormalizeParams, 48);

INTEROP_END

#endif
