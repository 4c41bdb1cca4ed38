#ifndef LORAD_GPU_KERNELS_LORA_SHRINK_PARAMS_H
#define LORAD_GPU_KERNELS_LORA_SHRINK_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

// lora_shrink_matrix cuts k into parts where its workgroups are few. A sum is that of 16 rows and 16 ranks for one
// module; arrivals count those of its parts that are done, and are zero before and after a dispatch.
INTEROP_CONST kShrinkPartsMax = 4;       // of a sum
INTEROP_CONST kShrinkAllPartsMax = 512;  // of all sums: about as many workgroups as an H200 runs at once

struct LoraShrinkParams {
    // LoraModule table + layer * kLoraModules entries: entry of slot s is s * lora_slot_stride further
    uint64_t lora_layer;
    uint64_t segments;  // LoraSegment[]
    uint64_t x;         // [t][x_stride] of the activation type
    uint64_t low;       // [low row][modules of the group][kMaxRank] f32
    // [kShrinkAllPartsMax][16][16] f32, then u32 arrivals[kShrinkAllPartsMax], by sum; 0: k is never cut
    uint64_t parts;
    uint32_t lora_slot_stride;  // entries: n_layers * kLoraModules
    uint32_t first_module;      // kLoraQ, kLoraO, kLoraGate or kLoraDown
    uint32_t n_modules;         // 3, 1, 2, 1
    uint32_t k;                 // input width
    uint32_t x_stride;          // elements; also the row stride of A
    uint32_t pad;
    // StackedGroup, whose blocks get the results instead of low, or 0. By lora_shrink_matrix alone; x is in fragments
    // by rows then
    uint64_t stacked;
    uint64_t stacked_low;  // MatmulStackedParams::low
    uint64_t grid;         // the group's ShrinkDispatch.grid; LoraKernels::lora_shrink() sets it
};
INTEROP_SIZE(LoraShrinkParams, 88);

INTEROP_END

#endif
