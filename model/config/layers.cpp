// Derives a model's layers from its config: ModelConfig and modules.h.
#include <algorithm>
#include <cmath>

#include "model/config/config.h"
#include "proto/base/check.h"

namespace lorad::model {

LoraGroup group_of(LinearModule module) {
    const auto number = static_cast<uint32_t>(module);
    for (uint32_t group = 0; group < kModuleGroups; ++group) {
        const auto first = static_cast<uint32_t>(kModuleRanges[group].first);
        if (number >= first && number < first + kModuleRanges[group].n_modules) return static_cast<LoraGroup>(group);
    }
    CHECK(false);
}

LoraGroup input_group_of(Mixer mixer) {
    switch (mixer) {
        case Mixer::kAttention: return kQkv;
        case Mixer::kDeltaNet: return kDeltaIn;
        case Mixer::kShortConv:
        case Mixer::kMamba: return kConvInGroup;
    }
    CHECK(false);
}

LoraGroup output_group_of(Mixer mixer) {
    switch (mixer) {
        case Mixer::kAttention: return kO;
        case Mixer::kDeltaNet: return kDeltaOutGroup;
        case Mixer::kShortConv:
        case Mixer::kMamba: return kConvOutGroup;
    }
    CHECK(false);
}

FusedDelta fused_delta_rows(const DeltaFacts& facts, LinearModule module) {
    const uint32_t ratio = facts.n_value_heads / facts.n_key_heads, keys = facts.key_head_dim,
                   values = ratio * facts.value_head_dim;
    const bool is_gates = module == LinearModule::kDeltaB || module == LinearModule::kDeltaA;
    const uint32_t of_head = is_gates ? 2 * ratio : 2 * keys + 2 * values;
    FusedDelta fused{.name = is_gates ? "in_proj_ba" : "in_proj_qkvz", .n = of_head * facts.n_key_heads};
    const auto add = [&](uint32_t begin, uint32_t n) {
        for (uint32_t head = 0; head < facts.n_key_heads; ++head) fused.rows.push_back({head * of_head + begin, n});
    };
    switch (module) {
        case LinearModule::kDeltaQkv:
            add(0, keys);
            add(keys, keys);
            add(2 * keys, values);
            break;
        case LinearModule::kDeltaZ: add(2 * keys + values, values); break;
        case LinearModule::kDeltaB: add(0, ratio); break;
        case LinearModule::kDeltaA: add(ratio, ratio); break;
        default: CHECK(false);
    }
    return fused;
}

std::string_view name_of(LinearModule module) {
    static constexpr std::string_view kNames[kModuleKinds] = {"q_proj",
                                                              "k_proj",
                                                              "v_proj",
                                                              "o_proj",
                                                              "gate_proj",
                                                              "up_proj",
                                                              "down_proj",
                                                              "per_layer_input_gate",
                                                              "per_layer_projection",
                                                              "per_layer_model_projection",
                                                              "in_proj_qkv",
                                                              "in_proj_z",
                                                              "in_proj_b",
                                                              "in_proj_a",
                                                              "out_proj",
                                                              "in_proj",
                                                              "out_proj",
                                                              "gate",
                                                              "shared_expert_gate",
                                                              "experts.gate_up_proj",
                                                              "experts.down_proj"};
    return kNames[static_cast<size_t>(module)];
}

LayerFacts ModelConfig::layer(uint32_t index) const {
    if (!layers.empty()) return layers[index];
    LayerFacts facts;
    facts.attention = {.n_heads = n_heads,
                       .n_kv_heads = n_kv_heads,
                       .head_dim = head_dim,
                       .window = sliding_windows.empty() ? 0 : sliding_windows[index],
                       .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
                       .qk_norm = qk_norm ? QkNorm::kPerHead : QkNorm::kNone,
                       .qkv_bias = qkv_bias,
                       .o_bias = o_bias};
    facts.ffn = {.size = intermediate_size, .bias = mlp_bias};
    return facts;
}

uint32_t ModelConfig::lora_stride() const {
    const bool has_more = std::ranges::any_of(layers, [](const LayerFacts& layer) {
        return layer.mixer != Mixer::kAttention || layer.ffn.kind != FeedForward::kDense || layer.per_layer_input != 0;
    });
    return has_more ? kModuleKinds : kLinearModules;
}

LinearShape ModelConfig::shape(uint32_t index, LinearModule module) const {
    const LayerFacts facts = layer(index);
    const AttentionFacts& attention = facts.attention;
    const DeltaFacts& delta = facts.delta;
    const bool attends = facts.mixer == Mixer::kAttention, has_delta = facts.mixer == Mixer::kDeltaNet,
               has_conv = facts.mixer == Mixer::kShortConv, has_mamba = facts.mixer == Mixer::kMamba;
    const MambaFacts& mamba = facts.mamba;
    const ExpertFacts& experts = facts.ffn.experts;
    const uint32_t ffn_size = facts.ffn.kind == FeedForward::kExperts ? experts.shared_size : facts.ffn.size,
                   ple = facts.per_layer_input;
    const auto sized = [](bool is_there, uint32_t n, uint32_t k) {
        return is_there && n != 0 && k != 0 ? LinearShape{n, k} : LinearShape{};
    };
    switch (module) {
        case LinearModule::kQ: return sized(attends, attention.q_size() * (attention.output_gate ? 2 : 1), hidden_size);
        case LinearModule::kK: return sized(attends, attention.k_rows(), hidden_size);
        case LinearModule::kV: return sized(attends, attention.v_rows(), hidden_size);
        case LinearModule::kO: return sized(attends, hidden_size, attention.q_size());
        case LinearModule::kGate:
        case LinearModule::kUp: return sized(true, ffn_size, hidden_size);
        case LinearModule::kDown: return sized(true, hidden_size, ffn_size);
        case LinearModule::kPleGate: return sized(ple != 0, ple, hidden_size);
        case LinearModule::kPleProjection: return sized(ple != 0, hidden_size, ple);
        case LinearModule::kPleModel: return sized(index == 0, ple * n_layers, hidden_size);
        case LinearModule::kDeltaQkv: return sized(has_delta, delta.conv_size(), hidden_size);
        case LinearModule::kDeltaZ: return sized(has_delta, delta.value_size(), hidden_size);
        case LinearModule::kDeltaB:
        case LinearModule::kDeltaA: return sized(has_delta, delta.n_value_heads, hidden_size);
        case LinearModule::kDeltaOut: return sized(has_delta, hidden_size, delta.value_size());
        case LinearModule::kConvIn:
            return sized(has_conv || has_mamba,
                         has_mamba ? mamba.inner_size() + mamba.conv_size() + mamba.n_heads : 3 * hidden_size,
                         hidden_size);
        case LinearModule::kConvOut:
            return sized(has_conv || has_mamba, hidden_size, has_mamba ? mamba.inner_size() : hidden_size);
        case LinearModule::kRouter: return sized(experts.n != 0, experts.n, hidden_size);
        case LinearModule::kSharedGate: return sized(experts.shared_gate, 1, hidden_size);
        case LinearModule::kExpertGateUp: return sized(experts.n != 0, 2 * experts.size, hidden_size);
        case LinearModule::kExpertDown: return sized(experts.n != 0, hidden_size, experts.size);
    }
    CHECK(false);
}

}  // namespace lorad::model
