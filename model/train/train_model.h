// Describes what a trainer is made for: the base's matrices, and which parts of their outputs are trained. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "model/config/config.h"
#include "model/train/trainable.h"
#include "model/weights/weights.h"
#include "proto/base/result.h"

namespace lorad::model {

// Neighbouring outputs of a product, and the pair that adapts them.
struct TrainPart {
    uint32_t begin = 0, n = 0;
    std::optional<uint32_t> linear;  // in TrainableAdapter::linears; none: the base alone
    bool has_magnitude = false, has_b_bias = false;
};

// Neighbouring outputs of a product whose bias is trained.
struct TrainBiasPart {
    uint32_t begin = 0, n = 0;
    uint32_t bias = 0;  // in TrainableAdapter::biases
};

// One product of a layer: all of its outputs, in order.
struct TrainGroup {
    const Matrix* w = nullptr;
    const Vector* bias = nullptr;
    std::vector<TrainPart> parts;
    std::vector<TrainBiasPart> biases = {};
    bool has_magnitudes() const;
    bool is_trained() const;   // has pairs
    bool trains_bias() const;  // its own, or B's of a pair
};

enum TrainGroupIndex : uint32_t { kTrainQkv, kTrainO, kTrainGateUp, kTrainDown, kTrainGroups };

struct TrainLayer {
    std::array<TrainGroup, kTrainGroups> groups;
    // Indices in TrainableAdapter::wholes.
    std::optional<uint32_t> input_norm, post_attention_norm, q_norm, k_norm;
    bool is_trained() const;
};

// kInvalidConfig: what the model has that is not trained, by name.
Status check_trains(const ModelConfig& config);

// Whether an adapter has numbers, or says what would be trained by its shapes alone.
enum class TrainNumbers : uint8_t { kAll, kNone };

struct TrainModel {
    // kInvalidConfig: what is not trained, by name; or tensors that do not fit the model.
    static Result<TrainModel> create(const ModelConfig& config, const ModelWeights& weights,
                                     const TrainableAdapter& adapter, TrainNumbers numbers = TrainNumbers::kAll);

    std::vector<TrainLayer> layers;
    std::optional<uint32_t> embedding, head, final_norm;  // in TrainableAdapter::wholes
    bool has_embedding_pair = false, has_head_pair = false;
    uint32_t first_trained_layer = 0;  // the backward pass ends there; n_layers: no layer has a trained tensor

    bool trains_embedding() const { return embedding.has_value() || has_embedding_pair; }
    bool trains_norms() const;  // any whose gradients are sums over rows
};

}  // namespace lorad::model
