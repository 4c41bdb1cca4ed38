// Parameters of the gated product by warpgroups that has its rows' adapters in its sums (gated_lora_text.h). No shader
// includes this.
#pragma once

#include <cstdint>

#include "gpu/kernels/products/matmul.params.h"
#include "gpu/kernels/products/prefetch_pages.h"

namespace lorad::gpu {

constexpr uint32_t kGatedLoraRanks = 16;  // the most of an adapter's gate and up
constexpr uint32_t kGatedLoraRows = 64;   // of a step

struct GatedLoraParams {
    // n_rows: StepHeader, behind it StepRow[]; each row has at most one adapter, as it is, with A and B of the weights'
    // type
    MatmulParams product;
    uint64_t x_rows;      // x in rows, [t][x_stride]
    uint64_t lora_layer;  // LoraModule table of slot 0 and this layer
    uint64_t low;         // [kGatedLoraRows][2][kGatedLoraRanks] f32, scratch
    uint64_t sync;        // GridBarrierSync, all zero before the first dispatch
    uint64_t given_up;    // u32, set to 1 if a grid barrier timed out; the result means nothing then
    uint32_t lora_slot_stride;
    uint32_t max_polls;  // of one grid barrier
    PrefetchPages prefetch;
};
static_assert(sizeof(GatedLoraParams) == 136);

}  // namespace lorad::gpu
