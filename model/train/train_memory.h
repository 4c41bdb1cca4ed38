// The device memory of a trainer's passes: sizes first, pure, then buffers.
//
// Letters: R rows of a micro-batch at most, H hidden, Q query and K key outputs, F ffn, V vocabulary. All f32, but what
// is marked with * has TrainSizes::act_type.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "gpu/device.h"
#include "model/train/train_model.h"
#include "model/train/train_parameters.h"
#include "model/train/train_slot.h"
#include "model/train/trainer.h"
#include "proto/base/result.h"

namespace lorad::model {

// Bytes from the beginning of a layer's activations. A product's sums and what comes of them are one place where no
// magnitude lies between.
struct LayerPlaces {
    uint64_t normed = 0;             // [R][H] *: the input of q, k, v
    uint64_t qkv_sums = 0, qkv = 0;  // [R][Q + 2K]
    uint64_t turned = 0;             // [R][Q + K]: q and k normed and turned; with flash [R][Q + 2K] *, values behind
    uint64_t lse = 0;                // [R][query heads], with flash
    uint64_t attention = 0;          // [R][Q]
    uint64_t o_sums = 0;             // [R][H], with magnitudes
    uint64_t middle = 0;             // [R][H]: the stream between attention and MLP
    uint64_t middle_normed = 0;      // [R][H] *
    uint64_t gate_up_sums = 0;       // [R][2F] *, with magnitudes
    uint64_t gate_up = 0;            // [R][2F] *
    uint64_t down_sums = 0;          // [R][H], with magnitudes
    uint64_t n_bytes = 0;
};

struct TrainSizes {
    uint32_t n_rows = 0;  // R
    uint32_t n_positions = 0;
    uint32_t hidden_stride = 0, qkv_stride = 0, turned_stride = 0, attention_stride = 0, gate_up_stride = 0,
             ffn_stride = 0, vocab_stride = 0;
    gpu::ScalarType act_type = gpu::ScalarType::kF32;
    bool has_flash = false;  // scores are never whole; of qkv only what norms of heads read is kept
    bool keeps_qkv = true;
    std::array<bool, kTrainGroups> has_magnitudes{};  // in any layer
    LayerPlaces places;
    uint64_t embedding_low_bytes = 0;
    uint32_t chunk_rows = 0;      // of logits
    uint64_t block_bytes = 0;     // of the largest input of a product in 16 bits
    uint64_t score_elements = 0;  // of a wave
    uint64_t terms_bytes = 0;     // 0: no norm is trained
    uint64_t unpacked_bytes = 0;  // of the largest matrix that lies in few bits and is multiplied with
    // layers' activations that there is memory for; all but the first are kept from forward to backward pass
    uint32_t n_sets = 0;
    uint32_t n_layers_needed = 0;  // that have a backward pass

    // The set of a layer, and whether its activations are there in the backward pass.
    uint32_t set_of(uint32_t layer, uint32_t n_layers) const;
    bool keeps(uint32_t layer, uint32_t n_layers) const;
};

// The types in which products are computed on matrices, where the device has them.
gpu::TrainKernelOptions train_kernel_options(const ModelConfig& config, const ModelWeights& weights,
                                             const TrainerOptions& options);

// The type of a job's activations between products.
gpu::ScalarType train_act_type(const gpu::DeviceCapabilities& capabilities, const ModelConfig& config,
                               const ModelWeights& weights, const TrainerOptions& options);

// The plan of the passes, and of the job that they are made for.
struct TrainPlan {
    TrainSizes sizes;
    SlotSizes slot;
    TrainMemory memory;  // of both
};
// kOutOfMemory with the arithmetic where `budget` does not hold it.
Result<TrainPlan> plan_training(const gpu::TrainRungs& rungs, const gpu::DeviceCapabilities& capabilities,
                                const ModelConfig& config, const ModelWeights& weights, const TrainModel& model,
                                const TrainLayout& layout, const TrainerOptions& options, uint64_t budget);

uint64_t rope_table_bytes(const ModelConfig& config, uint32_t n_positions);

struct TrainBuffers {
    static Result<TrainBuffers> create(gpu::Device& device, const ModelConfig& config, const TrainSizes& sizes);

    std::vector<gpu::Buffer> sets;  // LayerPlaces
    gpu::Buffer streams;            // [layers + 1][R][H]: what enters each layer, and what leaves the last
    gpu::Buffer dstream;            // [R][H]
    gpu::Buffer dnormed;            // [R][H]
    gpu::Buffer sums;               // [R][H]: of o and down without magnitudes
    gpu::Buffer dsums;              // [R][H], of o and down with magnitudes
    gpu::Buffer qkv_sums;           // [R][Q + 2K], where they are not kept
    gpu::Buffer rounded, dots;      // [R][Q] *, [R][query heads]: with flash
    gpu::Buffer gate_up_sums;       // [R][2F], where they are not f32 as they are kept
    gpu::Buffer act;                // [R][F] *, which is computed again in the backward pass
    gpu::Buffer dact, dgate_up;     // [R][F], [R][2F] *
    gpu::Buffer dattention, dturned, dqkv;
    gpu::Buffer dkeys, dvalues;  // [R][Q]: of each query head, before they are summed over those of a KV head
    gpu::Buffer scores, dscores;
    gpu::Buffer head_normed, dhead_normed;  // [R][H]
    gpu::Buffer logits;                     // [chunk_rows][V]
    gpu::Buffer embedding_low;              // [R][rank] of the pair of the embedding, twice
    gpu::Buffer terms;
    gpu::Buffer unpacked;  // a packed matrix of the base as a plain one, for the products with it alone
    gpu::Buffer rope;
    gpu::Buffer losses;  // gpu::TrainLoss[R], host
};

}  // namespace lorad::model
