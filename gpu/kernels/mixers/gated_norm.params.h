#ifndef LORAD_GPU_KERNELS_GATED_NORM_PARAMS_H
#define LORAD_GPU_KERNELS_GATED_NORM_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct GatedNormParams {
    uint64_t step;   // StepHeader
    uint64_t x;      // [t][x_stride] f32: heads of `size` elements
    uint64_t gate;   // [t][gate_stride] f32: likewise
    uint64_t gamma;  // [size] f32
    uint64_t y;      // [t][y_stride] of the activation type; what lies behind the heads is written with zeros
    uint32_t x_stride;
    uint32_t gate_stride;
    uint32_t y_stride;
    float eps;
};
INTEROP_SIZE(GatedNormParams, 56);

INTEROP_END

#endif
