#ifndef LORAD_GPU_KERNELS_SUM_PARTS_PARAMS_H
#define LORAD_GPU_KERNELS_SUM_PARTS_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

INTEROP_CONST kSumModulesMax = 4;  // of a group

struct SumPartsParams {
    uint64_t step;        // StepHeader, StepRow[]
    uint64_t y;           // [split][t][y_stride] f32
    uint64_t bias;        // [n] f32, or 0
    uint64_t low;         // shrink result of the group; unused without LoRA
    uint64_t lora_layer;  // as in LoraShrinkParams
    uint64_t uses;        // StepUse[]; read at level kFull only
    uint64_t to;          // [t][to_stride] f32; n..to_stride-1 are not touched
    uint32_t lora_slot_stride;
    uint32_t first_module;
    uint32_t n_modules;  // of the group, at most kSumModulesMax
    uint32_t y_stride;
    uint32_t split_stride;
    uint32_t to_stride;
    uint32_t module_end[kSumModulesMax];  // columns where the group's modules end, in order; the last one's is n
};
INTEROP_SIZE(SumPartsParams, 96);

INTEROP_END

#endif
