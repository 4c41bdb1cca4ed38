#ifndef LORAD_GPU_KERNELS_CONV_STATE_PARAMS_H
#define LORAD_GPU_KERNELS_CONV_STATE_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct ConvStateParams {
    uint64_t step;   // StepHeader
    uint64_t runs;   // StateRun[]
    uint64_t m;      // [t][m_stride] f32
    uint64_t state;  // as DeltaConvParams::state, [taps - 1][channels]
    uint32_t m_stride;
    uint32_t slot_stride;
    uint32_t channels;
    uint32_t factor;  // column that channel 0 is multiplied with, or 0: none
};
INTEROP_SIZE(ConvStateParams, 48);

INTEROP_END

#endif
