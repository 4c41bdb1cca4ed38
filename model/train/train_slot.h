// One job's share of a trainer's device memory, beside the passes' own: its trained numbers, its shadows, and the
// low-rank rows of its part of a micro-batch. Sizes first, pure, then buffers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "gpu/device.h"
#include "model/train/train_model.h"
#include "model/train/train_parameters.h"
#include "model/train/train_shadows.h"
#include "model/train/trainer.h"
#include "proto/base/result.h"

namespace lorad::model {

struct TrainSizes;

struct SlotSizes {
    uint32_t n_rows = 0;                  // of a micro-batch
    std::optional<ShadowPlaces> shadows;  // of act_type; then pairs of one product have their low rows side by side
    std::vector<uint64_t> low_begins;     // [linear]: bytes from the beginning of its layer's low
    std::vector<uint32_t> low_strides;    // [linear]
    std::vector<uint32_t> norm_begins;    // [linear] with a magnitude: elements from the beginning of the inverse norms
    uint64_t low_bytes = 0;               // of a layer
    std::vector<std::optional<uint32_t>> bias_begins;  // [layer][kTrainGroups] that train one: elements of the biases
    uint32_t n_norms = 0, n_biases = 0;
    uint32_t n_shadow_items = 0;
    uint64_t dropped_bytes = 0;   // 0: nothing is dropped
    uint64_t head_low_bytes = 0;  // 0: there is no pair on the output layer

    // The sizes for a job in passes of these sizes.
    static SlotSizes plan(const TrainSizes& sizes, const TrainModel& model, const TrainLayout& layout,
                          const TrainerOptions& options);
    uint64_t fixed_bytes() const;  // of all buffers but low and the trained numbers
};

// One thread at a time.
struct TrainSlot {
    // n_sets: layers' activations that the passes have memory for.
    static Result<std::unique_ptr<TrainSlot>> create(gpu::Device& device, TrainModel model,
                                                     const TrainableAdapter& adapter, SlotSizes sizes, uint32_t n_sets);

    TrainModel model;
    std::unique_ptr<TrainParameters> parameters;
    SlotSizes sizes;
    gpu::Buffer low;           // [sets][pairs of a layer][R][rank]: SlotSizes::low_begins, low_strides
    gpu::Buffer dlow;          // the same of one layer
    gpu::Buffer shadows;       // of the trained pairs: train_shadows.h
    gpu::Buffer shadow_items;  // gpu::TrainRoundItem[n_shadow_items]: how the shadows are made
    uint32_t n_shadow_items = 0, n_shadow_quads = 0;
    gpu::Buffer dropped;        // [R][largest of H, Q, F]: what is left of an input
    gpu::Buffer head_low;       // [2][R][rank] of the pair on the output layer, and its gradient
    gpu::Buffer inverse_norms;  // 1 / || W + scale B A || of each output with a magnitude
    gpu::Buffer biases;         // of groups that train one: the whole bias as it is, SlotSizes::bias_begins
    gpu::Buffer norm_sums;      // f32, host

    // Fills in shadow_items.
    Status place_shadows(gpu::Device& device);
    gpu::DeviceAddress low_of_set(uint32_t set) const { return low.address() + set * sizes.low_bytes; }
    // 0: the group trains none.
    gpu::DeviceAddress bias(uint32_t layer, TrainGroupIndex group) const {
        const auto& begin = sizes.bias_begins[layer * kTrainGroups + group];
        return begin ? biases.address() + *begin * sizeof(float) : 0;
    }
    const GroupShadow* shadow(uint32_t layer, TrainGroupIndex group) const {
        return sizes.shadows && model.layers[layer].groups[group].is_trained() ? &sizes.shadows->at(layer, group)
                                                                               : nullptr;
    }
};

}  // namespace lorad::model
