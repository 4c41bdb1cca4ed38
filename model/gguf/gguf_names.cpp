#include "model/gguf/gguf_names.h"

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "proto/base/format.h"

namespace lorad::model {
namespace {

constexpr GgufArchitecture kGgufArchitectures[] = {
    {"LlamaForCausalLM", "llama", true, false},
    {"MistralForCausalLM", "llama", true, false},
    {"Qwen2ForCausalLM", "qwen2", false, false},
    {"Qwen3ForCausalLM", "qwen3", false, false},
    {"Phi3ForCausalLM", "phi3", false, true},
    {"Gemma3ForCausalLM", "gemma3", false, false, true},
    // The same words for more kinds of layers. The first of a name is what a file without more fields holds.
    {"MixtralForCausalLM", "llama", true, false, false, true},
    {"Gemma2ForCausalLM", "gemma2", false, false, true, true},
    {"Gemma4ForCausalLM", "gemma4", false, false, true, true},
    {"SmolLM3ForCausalLM", "smollm3", true, false, false, true},
    {"Olmo2ForCausalLM", "olmo2", false, false, false, true},
    {"Olmo3ForCausalLM", "olmo2", false, false, false, true},
    {"GraniteForCausalLM", "granite", true, false, false, true},
    {"GraniteMoeHybridForCausalLM", "granitehybrid", true, false, false, true},
    {"Ministral3ForCausalLM", "mistral3", true, false, false, true},
    {"Qwen3_5ForCausalLM", "qwen35", false, false, false, true},
    {"Qwen3_5MoeForCausalLM", "qwen35moe", false, false, false, true},
    {"Qwen3NextForCausalLM", "qwen3next", false, false, false, true},
    {"Qwen3MoeForCausalLM", "qwen3moe", false, false, false, true},
    {"GptOssForCausalLM", "gpt-oss", false, false, false, true},
    {"Lfm2ForCausalLM", "lfm2", false, false, false, true},
    {"Lfm2MoeForCausalLM", "lfm2moe", false, false, false, true},
};

struct GgufName {
    std::string_view gguf, ours;
};
constexpr GgufName kWholeNames[] = {{"token_embd", "model.embed_tokens"},
                                    {"output_norm", "model.norm"},
                                    {"output", "lm_head"},
                                    {"token_embd_norm", "model.norm"},
                                    {"per_layer_token_embd", "model.embed_tokens_per_layer"},
                                    {"per_layer_model_proj", "model.per_layer_model_projection"},
                                    {"per_layer_proj_norm", "model.per_layer_projection_norm"}};
constexpr GgufName kLayerNames[] = {
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"attn_qkv", "self_attn.qkv_proj"},
    {"attn_norm", "input_layernorm"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
    {"pre_ffw_norm_2", "pre_feedforward_layernorm_2"},
    {"post_ffw_norm_1", "post_feedforward_layernorm_1"},
    {"post_ffw_norm_2", "post_feedforward_layernorm_2"},
    {"attn_sinks", "self_attn.sinks"},
    {"attn_gate", "linear_attn.in_proj_z"},
    {"ssm_alpha", "linear_attn.in_proj_a"},
    {"ssm_beta", "linear_attn.in_proj_b"},
    {"ssm_out", "linear_attn.out_proj"},
    {"ssm_conv1d", "linear_attn.conv1d"},
    {"ssm_norm", "linear_attn.norm"},
    {"ssm_dt", "linear_attn.dt_bias"},
    {"ssm_a", "linear_attn.A_log"},
    {"ssm_in", "mamba.in_proj"},
    {"ssm_d", "mamba.D"},
    {"shortconv.in_proj", "conv.in_proj"},
    {"shortconv.conv", "conv.conv"},
    {"shortconv.out_proj", "conv.out_proj"},
    {"ffn_gate_inp", "mlp.gate"},
    {"exp_probs_b", "mlp.expert_bias"},
    {"ffn_gate_up_exps", "mlp.experts.gate_up_proj"},
    {"ffn_down_exps", "mlp.experts.down_proj"},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
    {"inp_gate", "per_layer_input_gate"},
    {"proj", "per_layer_projection"},
    {"post_norm", "post_per_layer_input_norm"},
    {"layer_output_scale", "layer_scalar"},
};
constexpr std::string_view kDeltaQkv = "linear_attn.in_proj_qkv";
constexpr std::string_view kFfnNorm = "ffn_norm", kFfnNormOfFour = "pre_feedforward_layernorm";
constexpr std::string_view kFusedUp = "mlp.gate_up_proj";

}  // namespace

const GgufArchitecture* gguf_architecture(std::string_view gguf) {
    const auto* found = std::ranges::find(kGgufArchitectures, gguf, &GgufArchitecture::gguf);
    return found == std::end(kGgufArchitectures) ? nullptr : found;
}

const GgufArchitecture* gguf_architecture_of(std::string_view ours) {
    const auto* found = std::ranges::find(kGgufArchitectures, ours, &GgufArchitecture::ours);
    return found == std::end(kGgufArchitectures) ? nullptr : found;
}

std::string gguf_architectures() {
    std::string names;
    for (const GgufArchitecture& one : kGgufArchitectures) {
        if (gguf_architecture(one.gguf) == &one) names.append(names.empty() ? "" : ", ").append(one.gguf);
    }
    return names;
}

std::optional<std::string> name_from_gguf(std::string_view name, bool is_fused, bool has_norms_after) {
    if (const auto* whole = std::ranges::find(kWholeNames, name, &GgufName::gguf); whole != std::end(kWholeNames))
        return std::string(whole->ours);
    constexpr std::string_view kBlock = "blk.";
    if (!name.starts_with(kBlock)) return std::nullopt;
    name.remove_prefix(kBlock.size());
    const size_t dot = name.find('.');
    if (dot == std::string_view::npos) return std::nullopt;
    const std::string_view layer = name.substr(0, dot);
    if (layer.empty() || !std::ranges::all_of(layer, [](unsigned char c) { return std::isdigit(c) != 0; }))
        return std::nullopt;
    const auto* known = std::ranges::find(kLayerNames, name.substr(dot + 1), &GgufName::gguf);
    if (known == std::end(kLayerNames)) return std::nullopt;
    if (has_norms_after && known->gguf == kFfnNorm) return format("model.layers.{}.{}", layer, kFfnNormOfFour);
    if (!is_fused && known->gguf == "attn_qkv") return format("model.layers.{}.{}", layer, kDeltaQkv);
    return format("model.layers.{}.{}", layer, is_fused && known->gguf == "ffn_up" ? kFusedUp : known->ours);
}

std::optional<std::string> name_in_gguf(std::string_view module, bool has_norms_after) {
    if (const auto* whole = std::ranges::find(kWholeNames, module, &GgufName::ours); whole != std::end(kWholeNames))
        return std::string(whole->gguf);
    constexpr std::string_view kLayers = "model.layers.";
    if (!module.starts_with(kLayers)) return std::nullopt;
    module.remove_prefix(kLayers.size());
    const size_t dot = module.find('.');
    if (dot == std::string_view::npos) return std::nullopt;
    std::string_view part = module.substr(dot + 1);
    if (part == kFusedUp) part = "mlp.up_proj";
    if (part == kDeltaQkv) part = "self_attn.qkv_proj";
    if (part == kFfnNormOfFour) return format("blk.{}.{}", module.substr(0, dot), kFfnNorm);
    const auto* known = std::ranges::find_if(kLayerNames, [&](const GgufName& one) {
        return one.ours == part && !(has_norms_after && one.gguf == kFfnNorm);
    });
    if (known == std::end(kLayerNames)) return std::nullopt;
    return format("blk.{}.{}", module.substr(0, dot), known->gguf);
}

// Row i of pair j of a head is 2j + i in the file and i * half + j in ours.
uint64_t row_from_gguf(uint64_t row, uint64_t half) {
    const uint64_t in_head = row % (2 * half);
    return row - in_head + in_head % 2 * half + in_head / 2;
}
uint64_t row_in_gguf(uint64_t row, uint64_t half) {
    const uint64_t in_head = row % (2 * half);
    return row - in_head + in_head % half * 2 + in_head / half;
}

}  // namespace lorad::model
