#ifndef LORAD_GPU_KERNELS_GATED_ACT_PARAMS_H
#define LORAD_GPU_KERNELS_GATED_ACT_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct GatedActParams {
    uint64_t step;           // StepHeader, StepRow[]
    uint64_t y;              // [split][t][y_stride] f32: gate 0..ffn-1, up ffn..2*ffn-1
    uint64_t bias;           // [2 * ffn] f32, or 0
    uint64_t low;            // shrink result of group gate_up; unused without LoRA
    uint64_t lora_layer;     // as in LoraShrinkParams
    uint64_t uses;           // StepUse[]; read at level kFull only
    uint64_t act;            // [t][act_stride] of the activation type, or 0; ffn..act_stride-1 are written with zeros
    uint64_t act_fragments;  // the same in fragments (activation_fragments.h), or 0; not on matrices
    uint32_t lora_slot_stride;
    uint32_t ffn;
    uint32_t y_stride;
    uint32_t split_stride;
    uint32_t act_stride;
    uint32_t pad;
};
INTEROP_SIZE(GatedActParams, 88);

INTEROP_END

#endif
