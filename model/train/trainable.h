// The tensors of an adapter that are trained beside a frozen base model, in f32, and where each acts. Knows no files;
// adapters/plan/trainable.h makes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config/config.h"

namespace lorad::model {

// Dense and row-major.
struct TrainedTensor {
    // as files name it: "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"; here only a label
    std::string name;
    std::vector<uint64_t> shape;  // one size or two
    std::vector<float> values;
};

// A low-rank pair on a matrix W [n][k]: y = x W^T becomes y = gain (x W^T + scale (x A^T) B^T).
struct TrainedPair {
    float scale = 1.0f;  // alpha / rank, or alpha / sqrt(rank)
    TrainedTensor a;     // [rank][k]
    TrainedTensor b;     // [n][rank]
    // DoRA: gain = magnitude[n] / || W + scale B A || of each output; without one the gain is 1. The norm counts as a
    // constant in the gradients.
    std::optional<TrainedTensor> magnitude;
    // [n], of lora_B: scale times it is added. Not beside a magnitude, and of linear modules alone.
    std::optional<TrainedTensor> b_bias;

    uint32_t rank() const { return static_cast<uint32_t>(a.shape.at(0)); }
};

// Adapts linear modules of a layer: one, or neighbours that are one matrix in the files (fused projections): they share
// A, and B has their rows in order.
struct TrainedLinear {
    uint32_t layer = 0;
    LinearModule first = LinearModule::kQ, last = LinearModule::kQ;
    TrainedPair pair;
};

// A whole tensor of the base that the adapter has its own copy of (PEFT's modules_to_save).
enum class TrainedPart : uint8_t { kEmbedding, kHead, kInputNorm, kPostAttentionNorm, kQNorm, kKNorm, kFinalNorm };
struct TrainedWhole {
    TrainedPart part = TrainedPart::kFinalNorm;
    uint32_t layer = 0;    // of the norms of layers
    TrainedTensor weight;  // [vocab][hidden] of the embedding and the head; norms have one size
};

// A layer's own bias, which takes the place of the base's; of modules as TrainedLinear has them.
struct TrainedBias {
    uint32_t layer = 0;
    LinearModule first = LinearModule::kQ, last = LinearModule::kQ;
    TrainedTensor bias;  // [n]
};

struct TrainableAdapter {
    std::vector<TrainedLinear> linears;  // at most one for each layer and module
    std::vector<TrainedWhole> wholes;
    std::optional<TrainedPair> embedding;  // a [rank][vocab], b [hidden][rank]
    std::optional<TrainedPair> head;       // a [rank][hidden], b [vocab][rank]
    std::vector<TrainedBias> biases;       // at most one for each layer and module

    // All tensors, in a fixed order: that of layers and modules as they are listed, A, B, magnitude and B's bias of
    // each.
    std::vector<const TrainedTensor*> tensors() const;
    std::vector<TrainedTensor*> tensors();
    uint64_t n_parameters() const;
};

}  // namespace lorad::model
