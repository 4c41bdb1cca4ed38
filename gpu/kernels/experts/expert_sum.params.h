#ifndef LORAD_GPU_KERNELS_EXPERT_SUM_PARAMS_H
#define LORAD_GPU_KERNELS_EXPERT_SUM_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct ExpertSumParams {
    uint64_t step;         // StepHeader
    uint64_t chosen;       // ExpertRouteParams; read with bias only
    uint64_t weights;      // ExpertRouteParams
    uint64_t y;            // [pair][y_stride] f32
    uint64_t bias;         // [experts][hidden] f32, or 0
    uint64_t shared_y;     // [t][shared_stride] f32: the shared expert's, or 0: none
    uint64_t shared_gate;  // [t][gate_stride] f32: its gate's logit; 0: none
    uint64_t to;           // [t][to_stride] f32
    uint32_t y_stride;
    uint32_t shared_stride;
    uint32_t gate_stride;
    uint32_t to_stride;
    uint32_t hidden;
    uint32_t pad;
};
INTEROP_SIZE(ExpertSumParams, 88);

INTEROP_END

#endif
