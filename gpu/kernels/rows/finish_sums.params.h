#ifndef LORAD_GPU_KERNELS_FINISH_SUMS_PARAMS_H
#define LORAD_GPU_KERNELS_FINISH_SUMS_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

INTEROP_CONST kFinishModules = 4;  // at most, of one product

struct FinishSumsParams {
    uint64_t step;        // StepHeader, StepRow[]
    uint64_t y;           // [split][t][y_stride] f32; the first split gets the result
    uint64_t bias;        // f32, or 0
    uint64_t low;         // shrink result of the group; unused without LoRA
    uint64_t lora_layer;  // as in LoraShrinkParams
    uint64_t uses;        // StepUse[]; read at level kFull only
    // [columns of the module] f32 of the norms of the first two modules, or 0: they are not normed
    uint64_t gamma[2];
    uint64_t slot_norms;  // as in RmsNormParams, of the first; those of the second lie n_slots addresses further; or 0
    uint32_t lora_slot_stride;
    uint32_t first_module;
    uint32_t n_modules;
    uint32_t y_stride;
    uint32_t split_stride;
    uint32_t n_slots;  // of the LoRA table
    float eps;
    uint32_t module_end[kFinishModules];  // behind the last column of each
    uint32_t pad;
};
INTEROP_SIZE(FinishSumsParams, 120);

INTEROP_END

#endif
