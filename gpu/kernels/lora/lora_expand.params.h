#ifndef LORAD_GPU_KERNELS_LORA_EXPAND_PARAMS_H
#define LORAD_GPU_KERNELS_LORA_EXPAND_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

INTEROP_CONST kExpandLanesMin = 4;  // that share the ranks of an output; a subgroup has as many

struct LoraExpandParams {
    uint64_t n_segments;  // u32
    uint64_t segments;    // LoraSegment[], as lora_shrink had them
    uint64_t lora_layer;  // as in LoraShrinkParams
    uint64_t low;         // shrink result of the group
    uint64_t y;           // [t][y_stride] f32, in place: the first split of the product
    uint32_t lora_slot_stride;
    uint32_t first_module;  // as in LoraShrinkParams
    uint32_t n_modules;
    uint32_t y_stride;
    uint32_t module_end[3];  // of each module: the column of y behind its last one
    uint32_t pad;
};
INTEROP_SIZE(LoraExpandParams, 72);

INTEROP_END

#endif
