#ifndef LORAD_GPU_KERNELS_LORA_JOIN_PARAMS_H
#define LORAD_GPU_KERNELS_LORA_JOIN_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct LoraJoinParams {
    uint64_t step;        // StepHeader, StepRow[]
    uint64_t group;       // JoinedGroup
    uint64_t windows;     // of it: JoinedWindow[]
    uint64_t lora_layer;  // as in LoraShrinkParams
    uint64_t b;           // MatmulJoinedParams::b
    uint64_t low;         // and ::low
    uint32_t lora_slot_stride;
    uint32_t first_module;  // as in LoraShrinkParams
    uint32_t n_modules;
    uint32_t n;              // rows of b: columns of the product, with padding
    uint32_t module_end[3];  // of each module: the row of b behind its last one
    uint32_t pad;
};
INTEROP_SIZE(LoraJoinParams, 80);

INTEROP_END

#endif
