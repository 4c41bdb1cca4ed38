#ifndef LORAD_GPU_KERNELS_ADD_NORM_PARAMS_H
#define LORAD_GPU_KERNELS_ADD_NORM_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct AddNormParams {
    uint64_t step;          // StepHeader, StepRow[]
    uint64_t y;             // [split][t][y_stride] f32
    uint64_t bias;          // [hidden] f32, or 0
    uint64_t low;           // shrink result of group o or down; unused without LoRA
    uint64_t lora_layer;    // as in LoraShrinkParams
    uint64_t uses;          // StepUse[]; read at level kFull only
    uint64_t x;             // [t][x_stride] f32, updated in place
    uint64_t gamma;         // [hidden] f32, or 0: only the residual, xn is not touched
    uint64_t slot_norms;    // as in RmsNormParams
    uint64_t xn;            // [t][xn_stride] of the activation type, or 0; hidden..xn_stride-1 are written with zeros
    uint64_t xn_fragments;  // the same in fragments (activation_fragments.h), or 0
    uint32_t lora_slot_stride;
    uint32_t lora_module;  // kLoraO or kLoraDown
    uint32_t hidden;
    uint32_t y_stride;
    uint32_t split_stride;
    uint32_t x_stride;
    uint32_t xn_stride;
    float eps;
    uint64_t after_gamma;  // [hidden] f32, of the norm of what is added, or 0
};
INTEROP_SIZE(AddNormParams, 128);

INTEROP_END

#endif
