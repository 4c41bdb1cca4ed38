#include "model/weights/weight_inventory.h"

#include <cmath>
#include <string_view>
#include <utility>

#include "gpu/kernels/kernels.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

class Inventory {
  public:
    Inventory(const TensorFiles& files, const ModelConfig& config, ModelWeights& weights)
        : files_(files), config_(config) {
        weights.layers.resize(config.n_layers);
        add_matrix("model.embed_tokens", {config.vocab_size, config.hidden_size}, weights.embedding);
        for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
            add_layer(layer, weights.layers[layer]);
        }
        add_norm("model.norm.weight", config.hidden_size, weights.final_norm);
        if (const uint32_t ple = config.layer(0).per_layer_input; ple != 0) {
            add_matrix("model.embed_tokens_per_layer", {config.per_layer_vocab, ple * config.n_layers},
                       weights.ple_table);
            add_matrix("model.per_layer_model_projection", config.shape(0, LinearModule::kPleModel), weights.ple_model);
            add_norm("model.per_layer_projection_norm.weight", ple, weights.ple_model_norm);
        }
        if (!config.tied_embeddings) add_matrix("lm_head", {config.vocab_size, config.hidden_size}, weights.lm_head);
    }

    std::vector<WeightPart> take() { return std::move(parts_); }

  private:
    void add_layer(uint32_t index, LayerWeights& layer) {
        const LayerFacts facts = config_.layer(index);
        const std::string prefix = format("model.layers.{}.", index), mlp = prefix + "mlp.";
        const bool has_after = facts.mixer_norm.after;
        if (facts.mixer_norm.before) add_norm(prefix + "input_layernorm.weight", config_.hidden_size, layer.input_norm);
        switch (facts.mixer) {
            case Mixer::kAttention: add_attention(index, facts.attention, prefix + "self_attn.", layer); break;
            case Mixer::kDeltaNet: add_delta(index, facts.delta, prefix + "linear_attn.", layer); break;
            case Mixer::kShortConv: add_conv(index, facts.conv, prefix + "conv.", layer); break;
            case Mixer::kMamba: add_mamba(index, facts.mamba, prefix + "mamba.", layer); break;
        }
        if (has_after)
            add_norm(prefix + "post_attention_layernorm.weight", config_.hidden_size, layer.mixer_after_norm);
        // If the former is another norm, this one has another name.
        if (facts.ffn_norm.before)
            add_norm(prefix + (has_after ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight"),
                     config_.hidden_size, layer.ffn_norm);
        const auto shape = [&](LinearModule module) { return config_.shape(index, module); };
        if (facts.ffn.kind != FeedForward::kDense) add_experts(index, facts.ffn.experts, mlp, layer);
        if (facts.ffn.kind == FeedForward::kDenseAndExperts) add_norm_pairs(prefix, facts.ffn.experts, layer);
        if (facts.ffn.kind != FeedForward::kExperts) add_dense(index, facts.ffn, mlp, layer);
        if (facts.ffn_norm.after)
            add_norm(prefix + "post_feedforward_layernorm.weight", config_.hidden_size, layer.ffn_after_norm);
        if (facts.per_layer_input != 0) {
            add_linear(prefix, LinearModule::kPleGate, shape(LinearModule::kPleGate), false, layer.ple_gate, no_bias_);
            add_linear(prefix, LinearModule::kPleProjection, shape(LinearModule::kPleProjection), false,
                       layer.ple_projection, no_bias_);
            add_norm(prefix + "post_per_layer_input_norm.weight", config_.hidden_size, layer.ple_norm);
        }
        if (facts.stream_scale)
            parts_.push_back({.name = prefix + "layer_scalar", .n = 1, .number = &layer.stream_scale});
    }

    void add_dense(uint32_t index, const FfnFacts& facts, const std::string& prefix, LayerWeights& layer) {
        const auto add = [&](LinearModule module, Matrix& to, Vector& bias) {
            add_linear(prefix, module, config_.shape(index, module), facts.bias, to, bias);
        };
        if (config_.fused_gate_up) {
            add_matrix(prefix + "gate_up_proj", {2 * facts.size, config_.hidden_size}, layer.gate_up);
        } else {
            add(LinearModule::kGate, layer.gate_up, layer.gate_up_bias);
            add(LinearModule::kUp, layer.gate_up, layer.gate_up_bias);
        }
        add(LinearModule::kDown, layer.down, layer.down_bias);
    }

    // Router and experts read the residual stream by norms of their own, and the results of both halves are normed
    // before they are added.
    void add_norm_pairs(const std::string& prefix, const ExpertFacts& facts, LayerWeights& layer) {
        add_vector(prefix + "router.scale", config_.hidden_size, layer.router_norm);
        parts_.back().times = 1.0f / std::sqrt(static_cast<float>(config_.hidden_size));
        add_vector(prefix + "router.per_expert_scale", facts.n, layer.expert_scale);
        add_norm(prefix + "pre_feedforward_layernorm_2.weight", config_.hidden_size, layer.expert_norm);
        add_norm(prefix + "post_feedforward_layernorm_1.weight", config_.hidden_size, layer.dense_after_norm);
        add_norm(prefix + "post_feedforward_layernorm_2.weight", config_.hidden_size, layer.expert_after_norm);
    }

    void add_attention(uint32_t index, const AttentionFacts& facts, const std::string& prefix, LayerWeights& layer) {
        const auto shape = [&](LinearModule module) { return config_.shape(index, module); };
        if (config_.fused_qkv) {
            add_matrix(prefix + "qkv_proj", {facts.q_size() + 2 * facts.kv_size(), config_.hidden_size}, layer.qkv);
        } else {
            for (const auto module : {LinearModule::kQ, LinearModule::kK, LinearModule::kV}) {
                if (shape(module).n != 0)
                    add_linear(prefix, module, shape(module), facts.qkv_bias, layer.qkv, layer.qkv_bias);
            }
        }
        if (facts.qk_norm != QkNorm::kNone) {
            const bool is_wide = facts.qk_norm == QkNorm::kFullWidth;
            add_norm(prefix + "q_norm.weight", is_wide ? facts.q_size() : facts.head_dim, layer.q_norm);
            if (!facts.kv_from)
                add_norm(prefix + "k_norm.weight", is_wide ? facts.kv_size() : facts.head_dim, layer.k_norm);
        }
        if (facts.sinks) add_vector(prefix + "sinks", facts.n_heads, layer.sinks);
        add_linear(prefix, LinearModule::kO, shape(LinearModule::kO), facts.o_bias, layer.o, layer.o_bias);
    }

    void add_delta(uint32_t index, const DeltaFacts& facts, const std::string& prefix, LayerWeights& layer) {
        for (const auto module :
             {LinearModule::kDeltaQkv, LinearModule::kDeltaZ, LinearModule::kDeltaB, LinearModule::kDeltaA}) {
            const LinearShape shape = config_.shape(index, module);
            if (!config_.fused_delta) {
                add_linear(prefix, module, shape, false, layer.qkv, no_bias_);
                continue;
            }
            const FusedDelta fused = fused_delta_rows(facts, module);
            for (const RowRange& rows : fused.rows) {
                add_matrix(prefix + std::string(fused.name), {rows.n, shape.k}, layer.qkv);
                parts_.back().from = rows.begin;
                parts_.back().dims = {fused.n, shape.k};
            }
        }
        add_vector(prefix + "conv1d.weight", facts.conv_size() * facts.taps, layer.conv);
        parts_.back().dims = {facts.conv_size(), 1, facts.taps};
        add_vector(prefix + "A_log", facts.n_value_heads, layer.a_log);
        add_vector(prefix + "dt_bias", facts.n_value_heads, layer.dt_bias);
        // as it is, whatever the other norms hold
        add_vector(prefix + "norm.weight", facts.value_head_dim, layer.delta_norm);
        add_linear(prefix, LinearModule::kDeltaOut, config_.shape(index, LinearModule::kDeltaOut), false, layer.o,
                   no_bias_);
    }

    void add_conv(uint32_t index, const ConvFacts& facts, const std::string& prefix, LayerWeights& layer) {
        add_linear(prefix, LinearModule::kConvIn, config_.shape(index, LinearModule::kConvIn), facts.bias, layer.qkv,
                   layer.qkv_bias);
        add_vector(prefix + "conv.weight", config_.hidden_size * facts.taps, layer.conv);
        parts_.back().dims = {config_.hidden_size, 1, facts.taps};
        if (facts.bias) add_vector(prefix + "conv.bias", config_.hidden_size, layer.conv_bias);
        add_linear(prefix, LinearModule::kConvOut, config_.shape(index, LinearModule::kConvOut), facts.bias, layer.o,
                   layer.o_bias);
    }

    void add_mamba(uint32_t index, const MambaFacts& facts, const std::string& prefix, LayerWeights& layer) {
        add_linear(prefix, LinearModule::kConvIn, config_.shape(index, LinearModule::kConvIn), facts.proj_bias,
                   layer.qkv, layer.qkv_bias);
        add_vector(prefix + "conv1d.weight", facts.conv_size() * facts.taps, layer.conv);
        parts_.back().dims = {facts.conv_size(), 1, facts.taps};
        if (facts.conv_bias) add_vector(prefix + "conv1d.bias", facts.conv_size(), layer.conv_bias);
        add_vector(prefix + "A_log", facts.n_heads, layer.a_log);
        add_vector(prefix + "dt_bias", facts.n_heads, layer.dt_bias);
        add_vector(prefix + "D", facts.n_heads, layer.skip);
        add_vector(prefix + "norm.weight", facts.inner_size(), layer.delta_norm);
        add_linear(prefix, LinearModule::kConvOut, config_.shape(index, LinearModule::kConvOut), facts.proj_bias,
                   layer.o, layer.o_bias);
    }

    // Files hold each expert by itself, or all of a layer in one tensor: map_expert_tensors() makes the latter of
    // either.
    void add_experts(uint32_t index, const ExpertFacts& facts, const std::string& prefix, LayerWeights& layer) {
        const auto shape = [&](LinearModule module) { return config_.shape(index, module); };
        const auto add_like = [&](LinearModule module, bool has_bias, Matrix& to, Vector& bias) {
            add_linear(prefix, module, shape(module), has_bias, to, bias);
            parts_[parts_.size() - (has_bias ? 2 : 1)].like = &layer.expert_gate_up;
        };
        const auto add_stacked = [&](std::string_view name, LinearModule module, Matrix& to, Vector& bias) {
            const LinearShape one = shape(module);
            add_matrix(prefix + std::string(name), {facts.n * one.n, one.k}, to);
            if (!facts.bias) return;
            add_vector(prefix + std::string(name) + ".bias", facts.n * one.n, bias);
            parts_.back().dims = {facts.n, one.n};
        };
        if (files_.find(prefix + "experts.0.gate_proj.weight") != nullptr) {
            for (uint32_t expert = 0; expert < facts.n; ++expert) {
                const std::string one = format("{}experts.{}.", prefix, expert);
                for (const char* name : {"gate_proj", "up_proj"})
                    add_matrix(one + name, {facts.size, config_.hidden_size}, layer.expert_gate_up);
            }
            for (uint32_t expert = 0; expert < facts.n; ++expert)
                add_matrix(format("{}experts.{}.down_proj", prefix, expert), {config_.hidden_size, facts.size},
                           layer.expert_down);
        } else {
            add_stacked("experts.gate_up_proj", LinearModule::kExpertGateUp, layer.expert_gate_up,
                        layer.expert_gate_up_bias);
            add_stacked("experts.down_proj", LinearModule::kExpertDown, layer.expert_down, layer.expert_down_bias);
        }
        for (WeightPart& part : parts_)
            part.is_of_experts |= part.matrix == &layer.expert_gate_up || part.matrix == &layer.expert_down;
        add_like(LinearModule::kRouter, facts.bias, layer.router, layer.router_bias);
        if (facts.router == Router::kSigmoidBias) add_vector(prefix + "expert_bias", facts.n, layer.choice_bias);
        if (facts.shared_size == 0) return;
        const std::string shared = prefix + "shared_expert.";
        if (config_.fused_gate_up) {
            add_matrix(shared + "gate_up_proj", {2 * facts.shared_size, config_.hidden_size}, layer.gate_up);
            parts_.back().like = &layer.expert_gate_up;
        } else {
            for (const auto module : {LinearModule::kGate, LinearModule::kUp}) {
                add_linear(shared, module, shape(module), false, layer.gate_up, no_bias_);
                parts_.back().like = &layer.expert_gate_up;
            }
        }
        add_linear(shared, LinearModule::kDown, shape(LinearModule::kDown), false, layer.down, no_bias_);
        if (facts.shared_gate) add_like(LinearModule::kSharedGate, false, layer.shared_gate, no_bias_);
    }

    void add_linear(const std::string& prefix, LinearModule module, LinearShape shape, bool has_bias, Matrix& to,
                    Vector& bias) {
        const std::string name = prefix + std::string(name_of(module));
        add_matrix(name, shape, to);
        if (has_bias) add_vector(name + ".bias", shape.n, bias);
    }

    // Adds one to weights that the files store less one.
    void add_norm(std::string name, uint32_t n, Vector& to) {
        add_vector(std::move(name), n, to);
        parts_.back().plus = config_.one_plus_norms && !config_.norms_hold_one ? 1.0f : 0.0f;
    }
    void add_matrix(std::string name, LinearShape shape, Matrix& to) {
        parts_.push_back(
            {.name = std::move(name) + ".weight", .n = shape.n, .k = shape.k, .matrix = &to, .begin = to.n});
        to.n += shape.n;
        to.k = shape.k;
        to.n_padded = gpu::padded(to.n);
        to.k_stride = gpu::padded(to.k);
    }
    void add_vector(std::string name, uint32_t n, Vector& to) {
        parts_.push_back({.name = std::move(name), .n = n, .vector = &to, .begin = to.n});
        to.n += n;
    }

    const TensorFiles& files_;
    const ModelConfig& config_;
    std::vector<WeightPart> parts_;
    Vector no_bias_;
};

}  // namespace

std::vector<WeightPart> weight_inventory(const TensorFiles& files, const ModelConfig& config, ModelWeights& weights) {
    return Inventory(files, config, weights).take();
}

}  // namespace lorad::model
