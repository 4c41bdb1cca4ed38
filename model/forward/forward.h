// The transformer's forward pass, recorded once per shape of step and replayed: see forward.cpp for the pass itself.
#pragma once

#include <cstdint>
#include <span>

#include "gpu/command.h"
#include "gpu/device.h"
#include "gpu/kernels/kernels.h"
#include "model/config/config.h"
#include "model/exec/kv_cache.h"
#include "model/exec/state_cache.h"
#include "model/forward/decode_layers.h"
#include "model/forward/decode_rows.h"
#include "model/forward/grid_barrier.h"
#include "model/forward/rope_tables.h"
#include "model/forward/scratch.h"
#include "model/step/step_plan.h"
#include "model/step/step_shape.h"
#include "model/weights/lora_table.h"
#include "model/weights/weight_transform.h"
#include "model/weights/weights.h"
#include "proto/base/result.h"

namespace lorad::model {

// Everything a recording refers to; all of it outlives the recordings.
struct ForwardContext {
    gpu::KernelSet& kernels;
    const ModelConfig& config;
    const ModelWeights& weights;
    const MergedWeights* merged;  // of weight set 1
    const KvCache& kv_cache;
    const StateCache& states;
    const Scratch& scratch;
    const LoraTable& lora_table;
    RopeTables rope_tables;
    gpu::DeviceAddress host_logits;     // [readback][V] f32
    const DecodeLayers* decode_layers;  // of LayerSchedule::kOneDispatch and kApart
    const GridBarrier* decode_rows;     // of LayerSchedule::kBetween
    const GridBarrier* gated_lora;      // of AdapterMethod::kGatedProduct
    uint32_t n_positions_max;           // of a sequence

    // The address at which steps of a weight set (StepShape) read a matrix or a bias.
    template <typename MatrixOrVector>
    gpu::DeviceAddress address_of(const MatrixOrVector& weights_of, uint8_t weight_set) const {
        return model::address_of(weights_of, weight_set != 0 ? merged : nullptr);
    }
    // LoraModule[] of a layer and slot 0, and the modules from one slot to the next.
    gpu::DeviceAddress lora_layer(uint32_t layer) const {
        return lora_table.address() + uint64_t{layer} * config.lora_stride() * sizeof(gpu::LoraModule);
    }
    uint32_t lora_slot_stride() const { return config.n_layers * config.lora_stride(); }
    // The address of the adapters' own weights for a norm's kernel; 0 in recordings without.
    gpu::DeviceAddress slot_norms(const StepShape& shape, uint32_t layer, LoraTable::Norm norm) const {
        return shape.extras ? lora_table.norms_address(layer, norm) : 0;
    }
    gpu::DeviceAddress decode_table(uint8_t weight_set) const {
        return weight_set != 0 ? merged->decode_table()->address() : decode_layers->table();
    }
};

// Records one step by this plan. The step state must be in place before it runs; results are in scratch.results after
// it.
Status record_forward(gpu::Recorder& recorder, const ForwardContext& context, const StepPlan& plan);

}  // namespace lorad::model
