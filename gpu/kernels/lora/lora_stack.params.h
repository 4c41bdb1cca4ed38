#ifndef LORAD_GPU_KERNELS_LORA_STACK_PARAMS_H
#define LORAD_GPU_KERNELS_LORA_STACK_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct LoraStackParams {
    uint64_t step;        // StepHeader, StepRow[]
    uint64_t group;       // StackedGroup
    uint64_t windows;     // of it: StackedWindow[]
    uint64_t lora_layer;  // as in LoraShrinkParams
    uint64_t b;           // MatmulStackedParams::b
    uint64_t low;         // and ::low
    uint32_t lora_slot_stride;
    uint32_t first_module;  // as in LoraShrinkParams
    uint32_t n_modules;
    uint32_t n;              // rows of b: columns of the product, with padding
    uint32_t module_end[3];  // of each module: the row of b behind its last one
    uint32_t pad;
};
INTEROP_SIZE(LoraStackParams, 80);

INTEROP_END

#endif
