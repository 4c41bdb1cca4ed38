// Families with layers that have no attention (Qwen3.5, Qwen3-Next, LFM2), and those with experts (these, Qwen3 MoE,
// Mixtral, gpt-oss).
#include <algorithm>
#include <cmath>

#include "gpu/kernels/experts/expert_route.params.h"
#include "gpu/kernels/mixers/mixer_kernels.h"
#include "model/config/config_readers.h"
#include "model/exec/state_cache.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

constexpr uint32_t kSizeMax = 1u << 20, kHeadsMax = 1024;

// Reads layer_types: true if the layer attends to all that came before; the other name is the family's. Without the key
// layer i does if (i + 1) % every == 0.
Result<std::vector<bool>> attention_layers(const JsonValue& text, uint32_t n_layers, uint32_t every,
                                           std::string_view other) {
    std::vector<bool> attends;
    const auto types = text.find("layer_types");
    if (!types) {
        for (uint32_t layer = 0; layer < n_layers; ++layer) attends.push_back((layer + 1) % every == 0);
        return attends;
    }
    TRY_ASSIGN(const auto names, types->as_array());
    if (names.size() != n_layers)
        return types->error(format("expected {} entries (num_hidden_layers), found {}", n_layers, names.size()));
    for (const JsonValue& one : names) {
        TRY_ASSIGN(const auto name, one.as_string());
        if (name != "full_attention" && name != other)
            return one.error(format("expected full_attention or {}, found {}", other, one.describe()));
        attends.push_back(name == "full_attention");
    }
    return attends;
}

// Keys and values are planned in blocks of tokens, so there have to be some.
Status check_attends(const JsonValue& text, const std::vector<bool>& attends) {
    if (std::ranges::find(attends, true) != attends.end()) return ok_status();
    return text.error("layer_types: expected at least one layer of attention, found none");
}

Result<uint32_t> positive_or(const JsonValue& text, std::string_view key, uint32_t fallback, uint32_t max) {
    TRY_ASSIGN(const uint32_t number, uint_or(text, key, fallback, max));
    if (number == 0) return text.error(format("{}: expected a positive number, found 0", key));
    return number;
}

Result<DeltaFacts> read_delta(const JsonValue& text) {
    DeltaFacts delta;
    TRY_ASSIGN(delta.n_key_heads, positive_or(text, "linear_num_key_heads", 16, kHeadsMax));
    TRY_ASSIGN(delta.n_value_heads, positive_or(text, "linear_num_value_heads", 32, kHeadsMax));
    TRY_ASSIGN(delta.key_head_dim, positive_or(text, "linear_key_head_dim", 128, kSizeMax));
    TRY_ASSIGN(delta.value_head_dim, positive_or(text, "linear_value_head_dim", 128, kSizeMax));
    TRY_ASSIGN(delta.taps, positive_or(text, "linear_conv_kernel_dim", 4, kSizeMax));
    if (gpu::can_mix(delta_shape(delta))) return delta;
    return text.error(
        format("linear_*: expected value heads that are a multiple of the key heads, head sizes up to {}, of values a "
               "multiple of 4, and 2 to {} taps; found {} and {} heads of {} and {}, {} taps",
               gpu::kDeltaHeadMax, gpu::kConvTapsMax, delta.n_key_heads, delta.n_value_heads, delta.key_head_dim,
               delta.value_head_dim, delta.taps));
}

struct ExpertDefaults {
    uint32_t n = 0, top_k = 0, size = 0, shared_size = 0;
    bool normalise = true;
};
// Reads the keys of Qwen's families.
Result<ExpertFacts> read_experts(const JsonValue& text, const ExpertDefaults& defaults) {
    ExpertFacts experts;
    const char* count =
        text.find("num_experts") || !text.find("num_local_experts") ? "num_experts" : "num_local_experts";
    TRY_ASSIGN(experts.n, uint_or(text, count, defaults.n, kSizeMax));
    TRY_ASSIGN(experts.top_k, uint_or(text, "num_experts_per_tok", defaults.top_k, kSizeMax));
    TRY_ASSIGN(experts.size, positive_or(text, "moe_intermediate_size", defaults.size, kSizeMax));
    TRY_ASSIGN(experts.shared_size, uint_or(text, "shared_expert_intermediate_size", defaults.shared_size, kSizeMax));
    TRY_ASSIGN(experts.normalise, text.bool_or("norm_topk_prob", defaults.normalise));
    experts.shared_gate = experts.shared_size != 0;
    TRY(check_experts(text, experts));
    return experts;
}

// Experts in all layers but those that mlp_only_layers and decoder_sparse_step leave dense.
Status put_experts(const JsonValue& text, const ExpertFacts& experts, std::vector<LayerFacts>& layers) {
    TRY_ASSIGN(const uint32_t step, positive_or(text, "decoder_sparse_step", 1, kSizeMax));
    std::vector<bool> is_dense(layers.size());
    if (const auto dense = text.find("mlp_only_layers")) {
        TRY_ASSIGN(const auto list, dense->as_array());
        for (const JsonValue& one : list) {
            TRY_ASSIGN(const int64_t layer, one.as_int(0, kSizeMax));
            if (static_cast<size_t>(layer) < layers.size()) is_dense[static_cast<size_t>(layer)] = true;
        }
    }
    for (size_t layer = 0; layer < layers.size(); ++layer) {
        if (is_dense[layer] || (layer + 1) % step != 0) continue;
        layers[layer].ffn.kind = FeedForward::kExperts;
        layers[layer].ffn.experts = experts;
    }
    return ok_status();
}

// Every fourth layer attends, with a gate; the others are delta nets.
Status read_delta_hybrid(const JsonValue& text, ModelConfig& config) {
    TRY_ASSIGN(const bool has_gate, text.bool_or("attn_output_gate", true));
    if (!has_gate) return text.error("attn_output_gate: expected true, found false, which is not supported");
    TRY_ASSIGN(const uint32_t every, positive_or(text, "full_attention_interval", 4, kSizeMax));
    TRY_ASSIGN(const std::vector<bool> attends, attention_layers(text, config.n_layers, every, "linear_attention"));
    TRY(check_attends(text, attends));
    TRY_ASSIGN(const DeltaFacts delta, read_delta(text));
    config.layers = usual_layers(config);
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        LayerFacts& facts = config.layers[layer];
        facts.attention.output_gate = true;
        if (attends[layer]) continue;
        facts.mixer = Mixer::kDeltaNet;
        facts.attention = {};
        facts.delta = delta;
    }
    return ok_status();
}

}  // namespace

// Here, since readers of folders alone have no state.
gpu::DeltaShape delta_shape(const DeltaFacts& facts) {
    return {.key_heads = facts.n_key_heads,
            .value_heads = facts.n_value_heads,
            .key_size = facts.key_head_dim,
            .value_size = facts.value_head_dim,
            .taps = facts.taps};
}

gpu::MambaShape mamba_shape(const MambaFacts& facts) {
    return {.heads = facts.n_heads,
            .head_size = facts.head_dim,
            .groups = facts.n_groups,
            .state_size = facts.state_size,
            .taps = facts.taps};
}

Status check_experts(const JsonValue& text, const ExpertFacts& experts) {
    if (experts.n > 0 && experts.n <= gpu::kExpertsMax && experts.top_k > 0 &&
        experts.top_k <= std::min(experts.n, gpu::kTopExpertsMax))
        return ok_status();
    return text.error(
        format("experts: expected up to {}, of which each row has 1 to {} and no more than there are, found {} and {}",
               gpu::kExpertsMax, gpu::kTopExpertsMax, experts.n, experts.top_k));
}

Status read_qwen35(const JsonValue& text, const Family&, ModelConfig& config) {
    return read_delta_hybrid(text, config);
}

Status read_qwen35_moe(const JsonValue& text, const Family&, ModelConfig& config) {
    TRY(read_delta_hybrid(text, config));
    TRY_ASSIGN(ExpertFacts experts, read_experts(text, {.n = 256, .top_k = 8, .size = 512, .shared_size = 512}));
    experts.normalise = true;  // whatever the config says
    return put_experts(text, experts, config.layers);
}

Status read_qwen3_next(const JsonValue& text, const Family&, ModelConfig& config) {
    TRY(read_delta_hybrid(text, config));
    config.fused_delta = true;
    TRY_ASSIGN(const ExpertFacts experts, read_experts(text, {.n = 512, .top_k = 10, .size = 512, .shared_size = 512}));
    return put_experts(text, experts, config.layers);
}

Status read_qwen3_moe(const JsonValue& text, const Family&, ModelConfig& config) {
    TRY_ASSIGN(ExpertFacts experts, read_experts(text, {.n = 128, .top_k = 8, .size = 768, .normalise = false}));
    config.layers = usual_layers(config);
    return put_experts(text, experts, config.layers);
}

Status read_mixtral(const JsonValue& text, const Family&, ModelConfig& config) {
    ExpertFacts experts{.size = config.intermediate_size};
    TRY_ASSIGN(experts.n, uint_or(text, "num_local_experts", 8, kSizeMax));
    TRY_ASSIGN(experts.top_k, uint_or(text, "num_experts_per_tok", 2, kSizeMax));
    TRY(check_experts(text, experts));
    config.layers = usual_layers(config);
    return put_experts(text, experts, config.layers);
}

Status read_gpt_oss(const JsonValue& text, const Family&, ModelConfig& config) {
    ExpertFacts experts{.size = config.intermediate_size,
                        .router = Router::kTopThenSoftmax,
                        .gate_up_interleaved = true,
                        .by_inputs = true,
                        .bias = true};
    TRY_ASSIGN(experts.n, uint_or(text, "num_local_experts", 128, kSizeMax));
    TRY_ASSIGN(
        experts.top_k,
        uint_or(text, text.find("num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token", 4, kSizeMax));
    TRY(check_experts(text, experts));
    TRY_ASSIGN(const float alpha, float_or(text, "swiglu_alpha", 1.702, 0.0, 1e6));
    TRY_ASSIGN(const float limit, float_or(text, "swiglu_limit", 7.0, 1e-6, 1e6));
    TRY_ASSIGN(const uint32_t window, uint_or(text, "sliding_window", text.has("sliding_window") ? 0 : 128, 1u << 30));
    std::vector<bool> full;
    if (text.find("layer_types")) {
        TRY_ASSIGN(full, full_layers(text, config.n_layers, 2));
    } else {
        for (uint32_t layer = 0; layer < config.n_layers; ++layer) full.push_back(layer % 2 == 1);
    }
    config.layers = usual_layers(config);
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        LayerFacts& facts = config.layers[layer];
        facts.attention.sinks = true;
        facts.attention.sensitive_keys = true;
        facts.attention.window = full[layer] ? 0 : window;
        facts.ffn.clamp_alpha = alpha;
        facts.ffn.clamp_limit = limit;
    }
    return put_experts(text, experts, config.layers);
}

namespace {

// The size of LFM2's feed-forward: of what the config says two thirds, times a multiplier, in whole multiples.
Result<uint32_t> lfm2_size(const JsonValue& text, const ModelConfig& config) {
    TRY_ASSIGN(const uint32_t wished,
               positive_or(text, text.find("intermediate_size") ? "intermediate_size" : "block_ff_dim",
                           config.intermediate_size, kSizeMax));
    TRY_ASSIGN(const bool adjusts, text.bool_or("block_auto_adjust_ff_dim", true));
    if (!adjusts) return wished;
    TRY_ASSIGN(const float multiplier, float_or(text, "block_ffn_dim_multiplier", 1.0, 0.0, 1e3));
    TRY_ASSIGN(const uint32_t multiple, positive_or(text, "block_multiple_of", 256, kSizeMax));
    const uint32_t size = static_cast<uint32_t>(static_cast<double>(multiplier) * (2 * wished / 3));
    if (size == 0) return text.error("block_ffn_dim_multiplier: expected a feed-forward of some size, found none");
    return (size + multiple - 1) / multiple * multiple;
}

}  // namespace

Status read_lfm2(const JsonValue& text, const Family&, ModelConfig& config) {
    TRY_ASSIGN(config.rms_norm_eps,
               float_or(text, text.find("norm_eps") ? "norm_eps" : "block_norm_eps", 1e-5, 0.0, 1.0));
    TRY_ASSIGN(const bool is_tied, text.bool_or("tie_embedding", config.tied_embeddings));
    config.tied_embeddings = is_tied;
    std::vector<bool> attends(config.n_layers, true);
    if (const auto indices = text.find("full_attn_idxs"); indices && !text.find("layer_types")) {
        attends.assign(config.n_layers, false);
        TRY_ASSIGN(const auto list, indices->as_array());
        for (const JsonValue& one : list) {
            TRY_ASSIGN(const int64_t layer, one.as_int(0, config.n_layers - 1));
            attends[static_cast<size_t>(layer)] = true;
        }
    } else if (text.find("layer_types")) {
        TRY_ASSIGN(attends, attention_layers(text, config.n_layers, 1, "conv"));
    }
    TRY(check_attends(text, attends));
    ConvFacts conv;
    TRY_ASSIGN(conv.taps, uint_or(text, "conv_L_cache", 3, kSizeMax));
    TRY_ASSIGN(conv.bias, text.bool_or("conv_bias", false));
    if (conv.taps < 2 || conv.taps > gpu::kConvTapsMax)
        return text.error(format("conv_L_cache: expected 2 to {}, found {}", gpu::kConvTapsMax, conv.taps));
    TRY_ASSIGN(config.intermediate_size, lfm2_size(text, config));
    config.layers = usual_layers(config);
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        if (attends[layer]) continue;
        config.layers[layer].mixer = Mixer::kShortConv;
        config.layers[layer].attention = {};
        config.layers[layer].conv = conv;
    }
    return ok_status();
}

Status read_lfm2_moe(const JsonValue& text, const Family& family, ModelConfig& config) {
    const uint32_t dense_size = config.intermediate_size;
    TRY(read_lfm2(text, family, config));
    config.intermediate_size = dense_size;  // as it is
    ExpertFacts experts{.router = Router::kSigmoidBias};
    TRY_ASSIGN(experts.n, uint_or(text, "num_experts", 32, kSizeMax));
    TRY_ASSIGN(experts.top_k, uint_or(text, "num_experts_per_tok", 4, kSizeMax));
    TRY_ASSIGN(experts.size, positive_or(text, "moe_intermediate_size", 1792, kSizeMax));
    TRY_ASSIGN(experts.normalise, text.bool_or("norm_topk_prob", true));
    TRY_ASSIGN(experts.routed_scale, float_or(text, "routed_scaling_factor", 1.0, 0.0, 1e6));
    TRY_ASSIGN(const bool has_bias, text.bool_or("use_expert_bias", true));
    if (!has_bias) return text.error("use_expert_bias: expected true, found false, which is not supported");
    TRY(check_experts(text, experts));
    TRY_ASSIGN(const uint32_t n_dense, uint_or(text, "num_dense_layers", 2, kSizeMax));
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        FfnFacts& ffn = config.layers[layer].ffn;
        ffn.size = dense_size;
        if (layer < n_dense) continue;
        ffn.kind = FeedForward::kExperts;
        ffn.experts = experts;
    }
    return ok_status();
}

}  // namespace lorad::model
