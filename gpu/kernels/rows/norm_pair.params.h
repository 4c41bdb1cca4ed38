#ifndef LORAD_GPU_KERNELS_NORM_PAIR_PARAMS_H
#define LORAD_GPU_KERNELS_NORM_PAIR_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct NormPairParams {
    uint64_t step;     // StepHeader
    uint64_t a;        // [t][a_stride] f32
    uint64_t b;        // [t][b_stride] f32
    uint64_t a_gamma;  // [hidden] f32
    uint64_t b_gamma;  // [hidden] f32
    uint64_t y;        // [t][y_stride] f32; may be a or b. hidden..y_stride-1 are not touched
    uint32_t hidden;
    uint32_t a_stride;
    uint32_t b_stride;
    uint32_t y_stride;
    float eps;
    uint32_t pad;
};
INTEROP_SIZE(NormPairParams, 72);

INTEROP_END

#endif
