// A whole dense decoder with an adapter in training, in double precision: PEFT's forward pass with its dropout, written
// for clarity. Models of separate or fused projections, with or without biases and norms of heads; full rope.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config/config.h"
#include "model/train/trainable.h"
#include "model/train/trainer.h"
#include "tests/reference/transformer.h"

namespace lorad::reference {

// Philox4x32-10 keeps element k of an input of a linear where word k % 4 of the counter {k / 4, position, example,
// linear} and the key {seed, step} is at least p * 2^32. p 0: all.
struct Dropout {
    double p = 0;
    uint64_t seed = 0;
    uint32_t step = 0;
};

class TrainedModel {
  public:
    // weights: by the files' names.
    TrainedModel(const model::ModelConfig& config, std::map<std::string, std::vector<float>> weights)
        : config_(config), weights_(std::move(weights)) {}

    // || W + scale B A || of each output of each pair with a magnitude, which count as constants in the gradients.
    std::vector<Vector> norms(const model::TrainableAdapter& adapter) const;
    // The weighted sum of the losses over the number of trained tokens, as a step has it.
    double loss(const model::TrainableAdapter& adapter, const std::vector<Vector>& norms,
                const std::vector<model::TrainExample>& examples, const Dropout& dropout) const;

  private:
    using Rows = std::vector<Vector>;
    // What a forward pass of one example reads.
    struct Pass {
        const model::TrainableAdapter& adapter;
        const std::vector<Vector>& norms;
        const Dropout& dropout;
        uint32_t example = 0;
    };
    const std::vector<float>& weight(const std::string& name) const;
    Vector left_of(const Pass& pass, const Vector& x, uint32_t position, size_t linear) const;
    Rows linear(const Pass& pass, uint32_t layer, const std::string& module, const Rows& x) const;
    std::array<Rows, 3> queries_keys_values(const Pass& pass, uint32_t layer, const Rows& x) const;
    void turn_heads(Rows& rows, const std::string& norm) const;
    Rows attend(const std::array<Rows, 3>& qkv) const;
    Rows norm(const Rows& x, const std::string& name) const;
    Rows feed_forward(const Pass& pass, uint32_t layer, const Rows& x) const;
    Rows logits(const Pass& pass, const model::TrainExample& example) const;

    const model::ModelConfig& config_;
    std::map<std::string, std::vector<float>> weights_;
};

}  // namespace lorad::reference
