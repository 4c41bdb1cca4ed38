// The forward pass of a golden model in double precision, written for clarity: with adapters as a slot of the device
// would hold them, in host memory. What the kernels and the packed layouts are compared with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "model/config/config.h"
#include "model/weights/lora_table.h"
#include "tests/reference/transformer.h"

namespace lorad::testing {

// [n][k] row-major
struct HostMatrix {
    std::vector<float> values;
    size_t n = 0, k = 0;
    std::span<const float> row(size_t index) const { return std::span(values).subspan(index * k, k); }
};

struct HostPair {
    HostMatrix a, b;  // [rank][k], [n][rank]; empty without
    double scale = 0;
};

// An AdapterView whose addresses are pointers, read into dense matrices.
struct HostAdapter {
    HostAdapter(const model::AdapterView& view, const model::ModelConfig& config);
    HostAdapter(const HostAdapter&) = delete;

    struct Module {
        HostPair pair;
        std::vector<float> gain, bias;  // empty: none
    };
    std::vector<Module> modules;  // [n_layers][kLinearModules]
    HostPair embed, head;
    HostMatrix embed_table, head_table, token_rows;
    std::vector<uint32_t> token_ids;
    bool tokens_in_head = false;
    std::vector<float> head_bias, final_norm;
    struct Norms {
        std::vector<float> input, post_attention, q, k;
    };
    std::vector<Norms> norms;  // [n_layers], or empty
};

struct HostUse {
    const HostAdapter* adapter = nullptr;
    double scale = 1;
};

// For one thread.
class HostModel {
  public:
    explicit HostModel(const std::filesystem::path& folder);

    // Logits after the last of `ids`, every row with the sum of `uses`. From `first_row` on; rows before run as the
    // base.
    reference::Vector last_logits(std::span<const int32_t> ids, std::span<const HostUse> uses,
                                  size_t first_row = 0) const;

    // What WeightStore::finish_gains does: magnitudes at the gains become magnitude / || W + scale B A ||.
    void finish_gains(const model::AdapterView& view) const;

    const model::ModelConfig& config() const { return config_; }

  private:
    struct Layer {
        HostMatrix linear[model::kLinearModules];
        std::vector<float> bias[model::kLinearModules];  // empty: none
        std::vector<float> input_norm, post_attention_norm, q_norm, k_norm;
    };
    reference::Vector apply(uint32_t layer, model::LinearModule module, const reference::Vector& x,
                            std::span<const HostUse> uses) const;
    reference::Vector embed(int32_t token, std::span<const HostUse> uses) const;
    reference::Vector logits(const reference::Vector& x, std::span<const HostUse> uses) const;

    model::ModelConfig config_;
    std::vector<Layer> layers_;
    HostMatrix embedding_, lm_head_;  // lm_head_ empty where tied
    std::vector<float> final_norm_;
};

}  // namespace lorad::testing
