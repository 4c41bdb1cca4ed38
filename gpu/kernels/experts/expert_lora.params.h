#ifndef LORAD_GPU_KERNELS_EXPERT_LORA_PARAMS_H
#define LORAD_GPU_KERNELS_EXPERT_LORA_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

// The module's A in the table is [experts][rank][x_stride], its B [experts][n][rank rounded up to 8].
struct ExpertLoraParams {
    uint64_t step;        // StepHeader, StepRow[]
    uint64_t uses;        // StepUse[]; read at level kFull only
    uint64_t lora_layer;  // as in LoraShrinkParams
    uint64_t chosen;      // ExpertRouteParams
    uint64_t x;           // [x row][x_stride] of the activation type
    uint64_t y;           // [pair][y_stride] f32, updated in place
    uint32_t lora_slot_stride;
    uint32_t module;
    uint32_t n, k;
    uint32_t x_stride;
    uint32_t y_stride;
    uint32_t top;
    uint32_t pairs_per_row;  // as in ExpertProductParams
};
INTEROP_SIZE(ExpertLoraParams, 80);

INTEROP_END

#endif
