// A Qwen2 or Qwen3 MoE folder with random f16 weights of some size, where no golden is as large.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "proto/base/check.h"
#include "tests/reference/numbers.h"
#include "tests/support/temp_dir.h"

namespace lorad::testing {

class RandomModel {
  public:
    struct Shape {
        uint32_t hidden, heads, kv_heads, head_dim, ffn, layers, vocab;
        // of the slowest pair of channels of layer 0's keys, and half as much of its queries, as Qwen2.5 has them
        float large_bias = 0.0f;
        // Not 0: Qwen3 MoE, of whose experts `top` are chosen, each of size ffn
        uint32_t experts = 0, top = 0;
    };

    explicit RandomModel(const Shape& shape) : shape_(shape) {
        nlohmann::json config{{"architectures", {"Qwen2ForCausalLM"}},
                              {"model_type", "qwen2"},
                              {"vocab_size", shape.vocab},
                              {"hidden_size", shape.hidden},
                              {"intermediate_size", shape.ffn},
                              {"num_hidden_layers", shape.layers},
                              {"num_attention_heads", shape.heads},
                              {"num_key_value_heads", shape.kv_heads},
                              {"hidden_act", "silu"},
                              {"max_position_embeddings", 128},
                              {"rms_norm_eps", 1e-6},
                              {"rope_theta", 10000.0},
                              {"tie_word_embeddings", true},
                              {"torch_dtype", "float16"}};
        if (shape.experts != 0) {
            config["architectures"] = {"Qwen3MoeForCausalLM"};
            config["model_type"] = "qwen3_moe";
            config["head_dim"] = shape.head_dim;
            config["num_experts"] = shape.experts;
            config["num_experts_per_tok"] = shape.top;
            config["moe_intermediate_size"] = shape.ffn;
            config["norm_topk_prob"] = true;
        }
        std::ofstream(folder() / "config.json") << config;
        add("model.embed_tokens.weight", shape.vocab, shape.hidden, 1.0f);
        add_ones("model.norm.weight");
        for (uint32_t l = 0; l < shape.layers; ++l) {
            const std::string layer = "model.layers." + std::to_string(l) + ".";
            for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) add_ones(layer + norm + ".weight");
            for (const auto& [name, n] : {std::pair{"q", shape.heads * shape.head_dim},
                                          {"k", shape.kv_heads * shape.head_dim},
                                          {"v", shape.kv_heads * shape.head_dim}}) {
                add(layer + "self_attn." + name + "_proj.weight", n, shape.hidden, 0.05f);
                if (shape.experts == 0)
                    add(layer + "self_attn." + name + "_proj.bias", n, 0, biases(n, l == 0 ? *name : 'v'));
            }
            add(layer + "self_attn.o_proj.weight", shape.hidden, shape.heads * shape.head_dim, 0.05f);
            if (shape.experts == 0) {
                add_feed_forward(layer + "mlp.");
                continue;
            }
            for (const char* norm : {"q_norm", "k_norm"})
                add(layer + "self_attn." + norm + ".weight", shape.head_dim, 0,
                    std::vector<float>(shape.head_dim, 1.0f));
            add(layer + "mlp.gate.weight", shape.experts, shape.hidden, 0.5f);
            for (uint32_t e = 0; e < shape.experts; ++e)
                add_feed_forward(layer + "mlp.experts." + std::to_string(e) + ".");
        }
        const std::string header = header_.dump();
        const uint64_t header_bytes = header.size();
        std::ofstream file(folder() / "model.safetensors", std::ios::binary);
        file.write(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
        file << header;
        file.write(reinterpret_cast<const char*>(data_.data()), static_cast<std::streamsize>(data_.size()));
        CHECK(file.good());
    }
    const std::filesystem::path& folder() const { return dir_.path(); }

  private:
    void add_feed_forward(const std::string& prefix) {
        add(prefix + "gate_proj.weight", shape_.ffn, shape_.hidden, 0.05f);
        add(prefix + "up_proj.weight", shape_.ffn, shape_.hidden, 0.05f);
        add(prefix + "down_proj.weight", shape_.hidden, shape_.ffn, 0.03f);
    }
    void add(const std::string& name, uint32_t n, uint32_t k, float bound) {
        add(name, n, k, reference::random_values(size_t{n} * std::max(k, 1u), reference::Type::kF16, random_, bound));
    }
    std::vector<float> biases(uint32_t n, char of) {
        std::vector<float> values = reference::random_values(n, reference::Type::kF16, random_, 0.05f);
        if (of == 'v' || shape_.large_bias == 0.0f) return values;
        const uint32_t half = shape_.head_dim / 2;
        for (uint32_t d = half - 1; d < n; d += half) values[d] = of == 'k' ? shape_.large_bias : shape_.large_bias / 2;
        return values;
    }
    void add_ones(const std::string& name) { add(name, shape_.hidden, 0, std::vector<float>(shape_.hidden, 1.0f)); }
    void add(const std::string& name, uint32_t n, uint32_t k, const std::vector<float>& values) {
        const auto bytes = reference::encode(values, values.size(), values.size(), reference::Type::kF16);
        const std::vector<uint32_t> sizes = k > 0 ? std::vector<uint32_t>{n, k} : std::vector<uint32_t>{n};
        header_[name] = {
            {"dtype", "F16"}, {"shape", sizes}, {"data_offsets", {data_.size(), data_.size() + bytes.size()}}};
        data_.insert(data_.end(), bytes.begin(), bytes.end());
    }

    const Shape shape_;
    TempDir dir_;
    nlohmann::json header_;
    std::vector<std::byte> data_;
    std::mt19937 random_{28};
};

}  // namespace lorad::testing
