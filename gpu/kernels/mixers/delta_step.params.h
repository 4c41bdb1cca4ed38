#ifndef LORAD_GPU_KERNELS_DELTA_STEP_PARAMS_H
#define LORAD_GPU_KERNELS_DELTA_STEP_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct DeltaStepParams {
    uint64_t step;  // StepHeader
    uint64_t runs;  // StateRun[]
    uint64_t c;     // DeltaConvParams::to
    // the layer's states: slot s begins s * slot_stride floats further, [value head][value size][key size rounded up to
    // 16]
    uint64_t state;
    uint64_t to;  // [t][to_stride] f32: value heads
    uint32_t c_stride;
    uint32_t slot_stride;
    uint32_t to_stride;
    uint32_t pad;
};
INTEROP_SIZE(DeltaStepParams, 56);

INTEROP_END

#endif
