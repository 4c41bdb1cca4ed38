// States of fixed size that layers without attention keep of each sequence: one slot for each that runs, beside the KV
// cache, and behind those slots for states of prefixes that others may go on from (server/engine/state_snapshots.h).
// f32, written by each step in place: a step that runs twice would move on twice, so nothing that repeats steps may be
// used with such a model (kFeatureOtherMixers).
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/device.h"
#include "gpu/kernels/mixers/mixer_kernels.h"
#include "model/config/config.h"
#include "proto/base/result.h"

namespace lorad::model {

gpu::DeltaShape delta_shape(const DeltaFacts& facts);
gpu::MambaShape mamba_shape(const MambaFacts& facts);

// f32 of one slot and layer; 0 where there is none.
struct StateSizes {
    uint32_t conv_floats = 0;   // the last inputs of a convolution
    uint32_t delta_floats = 0;  // of a recurrence
    uint64_t n_bytes() const { return (uint64_t{conv_floats} + delta_floats) * sizeof(float); }
};
StateSizes state_sizes(const ModelConfig& config, uint32_t layer);
// Device bytes of one slot, all layers. 0: the model has no state.
uint64_t state_slot_bytes(const ModelConfig& config);
inline bool has_state(const ModelConfig& config) { return state_slot_bytes(config) != 0; }

struct StateCache {
    struct Layer {
        gpu::Buffer conv, delta;  // [slot][floats]; empty where the layer has none
        StateSizes sizes;
    };
    std::vector<Layer> layers;

    static Result<StateCache> create(gpu::Device& device, const ModelConfig& config, uint32_t n_slots);
};

}  // namespace lorad::model
