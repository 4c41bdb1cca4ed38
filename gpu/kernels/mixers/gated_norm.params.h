#ifndef LORAD_GPU_KERNELS_GATED_NORM_PARAMS_H
#define LORAD_GPU_KERNELS_GATED_NORM_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

// Groups of `size` elements: the heads of a delta net; of Mamba 2 the heads that have one B and C.
struct GatedNormParams {
    uint64_t step;        // StepHeader
    uint64_t x;           // [t][x_stride] f32
    uint64_t gate;        // [t][gate_stride] f32
    uint64_t skip_x;      // [t][skip_stride] f32, of Mamba 2 alone
    uint64_t skip;        // [heads] f32, likewise
    uint64_t gamma;       // [size] f32; of Mamba 2 [groups * size]
    uint64_t slot_norms;  // as in RmsNormParams
    uint64_t y;           // [t][y_stride] of the activation type; what lies behind the groups is written with zeros
    uint32_t x_stride;
    uint32_t gate_stride;
    uint32_t skip_stride;
    uint32_t y_stride;
    float eps;
    uint32_t pad;
};
INTEROP_SIZE(GatedNormParams, 88);

INTEROP_END

#endif
