#ifndef LORAD_GPU_KERNELS_SHORT_CONV_PARAMS_H
#define LORAD_GPU_KERNELS_SHORT_CONV_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct ShortConvParams {
    uint64_t step;     // StepHeader, StepRow[]
    uint64_t runs;     // StateRun[]
    uint64_t m;        // [t][m_stride] f32: thirds B, C, u of `channels` each
    uint64_t weights;  // [channels][taps] f32
    uint64_t bias;     // [channels] f32, or 0
    uint64_t state;    // as DeltaConvParams::state, [taps - 1][channels]: the products B u
    uint64_t y;        // [t][y_stride] of the activation type; channels..y_stride-1 are written with zeros
    uint32_t m_stride;
    uint32_t slot_stride;
    uint32_t channels;
    uint32_t y_stride;
};
INTEROP_SIZE(ShortConvParams, 72);

INTEROP_END

#endif
