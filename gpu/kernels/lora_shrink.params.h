#ifndef LORAD_GPU_KERNELS_LORA_SHRINK_PARAMS_H
#define LORAD_GPU_KERNELS_LORA_SHRINK_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct LoraShrinkParams {
    uint64_t lora_layer;  // LoraModule table + layer * kLoraModules entries: entry of slot s is s * lora_slot_stride further
    uint64_t segments;    // LoraSegment[]
    uint64_t x;           // [t][x_stride] of the activation type
    uint64_t low;         // [low row][modules of the group][kMaxRank] f32
    uint32_t lora_slot_stride;  // entries: n_layers * kLoraModules
    uint32_t first_module;      // kLoraQ, kLoraO, kLoraGate or kLoraDown
    uint32_t n_modules;         // 3, 1, 2, 1
    uint32_t k;                 // input width
    uint32_t x_stride;          // elements; also the row stride of A
    uint32_t pad;
};
INTEROP_SIZE(LoraShrinkParams, 56);

INTEROP_END

#endif
