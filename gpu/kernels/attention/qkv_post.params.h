#ifndef LORAD_GPU_KERNELS_QKV_POST_PARAMS_H
#define LORAD_GPU_KERNELS_QKV_POST_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct QkvPostParams {
    uint64_t step;          // StepHeader, StepRow[]
    uint64_t y;             // [split][t][y_stride] f32: q heads, k heads, v heads
    uint64_t bias;          // [(q + 2 kv heads) * D] f32, or 0
    uint64_t low;           // shrink result of group qkv; unused without LoRA
    uint64_t lora_layer;    // as in LoraShrinkParams
    uint64_t uses;          // StepUse[]; read at level kFull only
    uint64_t rope;          // [position][rotary_dim / 2][2] f32: cos, sin; row rope_begin + position
    uint64_t q_gamma;       // [D] f32, or 0: no norm on q
    uint64_t k_gamma;       // [D] f32, or 0
    uint64_t q_slot_norms;  // as in RmsNormParams; those of k lie n_slots addresses further
    uint64_t q;             // [t][q_stride] f32
    uint64_t kv;            // this layer's cache: f16 [block][K|V][kv_head][kBlockTokens][D]
    uint32_t lora_slot_stride;
    uint32_t y_stride;
    uint32_t split_stride;
    uint32_t q_stride;
    float eps;         // of the q and k norms
    uint32_t n_slots;  // of the LoRA table
};
INTEROP_SIZE(QkvPostParams, 120);

INTEROP_END

#endif
