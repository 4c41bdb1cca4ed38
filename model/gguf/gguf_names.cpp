#include "model/gguf/gguf_names.h"

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "proto/base/format.h"

namespace lorad::model {
namespace {

constexpr GgufArchitecture kGgufArchitectures[] = {
    {"LlamaForCausalLM", "llama", true, false},  {"MistralForCausalLM", "llama", true, false}, {"Qwen2ForCausalLM", "qwen2", false, false},
    {"Qwen3ForCausalLM", "qwen3", false, false}, {"Phi3ForCausalLM", "phi3", false, true}, {"Gemma3ForCausalLM", "gemma3", false, false, true},
};

struct GgufName {
    std::string_view gguf, ours;
};
constexpr GgufName kWholeNames[] = {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
constexpr GgufName kLayerNames[] = {
    {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},          {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"ffn_gate", "mlp.gate_proj"},           {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},       {"attn_qkv", "self_attn.qkv_proj"},      {"attn_norm", "input_layernorm"},
    {"attn_q_norm", "self_attn.q_norm"}, {"ffn_norm", "post_attention_layernorm"}, {"attn_k_norm", "self_attn.k_norm"},
    {"post_attention_norm", "post_attention_layernorm"}, {"post_ffw_norm", "post_feedforward_layernorm"},
};
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
    if (const auto* whole = std::ranges::find(kWholeNames, name, &GgufName::gguf); whole != std::end(kWholeNames)) return std::string(whole->ours);
    constexpr std::string_view kBlock = "blk.";
    if (!name.starts_with(kBlock)) return std::nullopt;
    name.remove_prefix(kBlock.size());
    const size_t dot = name.find('.');
    if (dot == std::string_view::npos) return std::nullopt;
    const std::string_view layer = name.substr(0, dot);
    if (layer.empty() || !std::ranges::all_of(layer, [](unsigned char c) { return std::isdigit(c) != 0; })) return std::nullopt;
    const auto* known = std::ranges::find(kLayerNames, name.substr(dot + 1), &GgufName::gguf);
    if (known == std::end(kLayerNames)) return std::nullopt;
    if (has_norms_after && known->gguf == kFfnNorm) return format("model.layers.{}.{}", layer, kFfnNormOfFour);
    return format("model.layers.{}.{}", layer, is_fused && known->gguf == "ffn_up" ? kFusedUp : known->ours);
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
