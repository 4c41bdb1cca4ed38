// The places of a step's experts in one buffer (Scratch::experts) for so many rows, as large as the model's largest
// layer needs. All zero-sized without experts.
#pragma once

#include <cstdint>

#include "gpu/kernels/experts/expert_kernels.h"
#include "model/config/config.h"

namespace lorad::model {

struct ExpertPlaces {
    ExpertPlaces(const ModelConfig& config, uint32_t rows);

    uint32_t experts_max = 0, top_max = 0;  // of a layer
    // Byte offsets.
    uint64_t counts = 0;                           // u32[layers][experts_max]; zeroed when a step begins
    uint64_t n_tiles = 0;                          // u32
    uint64_t logits = 0;                           // [rows][experts_max] f32
    uint64_t gate = 0;                             // [rows] f32: the shared expert's
    uint64_t chosen = 0, weights = 0, sorted = 0;  // [rows * top_max], as in ExpertRouteParams
    uint64_t tiles = 0;                            // ExpertTile[]
    uint64_t shared = 0;                           // [rows][hidden] f32: what the shared expert gives
    uint64_t y = 0;                                // [rows * top_max][what the wider of both products gives] f32
    uint64_t act = 0;                              // [rows * top_max][padded expert size], of f32 or less
    uint64_t end = 0;

    uint64_t counts_of(uint32_t layer) const { return counts + uint64_t{layer} * experts_max * sizeof(uint32_t); }
    uint64_t counts_bytes() const { return n_tiles - counts; }
};

}  // namespace lorad::model
