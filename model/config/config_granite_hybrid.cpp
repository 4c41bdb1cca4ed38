// Granite 4: Mamba 2 or attention in each layer, a feed-forward that every row passes, and experts beside it in some
// models.
#include <algorithm>
#include <array>
#include <limits>

#include "gpu/kernels/mixers/mixer_kernels.h"
#include "model/config/config_readers.h"
#include "model/exec/state_cache.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

constexpr uint32_t kMambaSizeMax = 1u << 20;

// The one feed-forward of models without experts is the shared one of those with some. Files of transformers 4 hold the
// experts as input_linear and output_linear.
constexpr std::array<Spelling, 2> kDenseSpellings = {
    {{"shared_mlp.input_linear", "mlp.gate_up_proj"}, {"shared_mlp.output_linear", "mlp.down_proj"}}};
constexpr std::array<Spelling, 7> kExpertSpellings = {{{"shared_mlp.input_linear", "mlp.shared_expert.gate_up_proj"},
                                                       {"shared_mlp.output_linear", "mlp.shared_expert.down_proj"},
                                                       {"block_sparse_moe.router", "mlp.gate"},
                                                       {"mlp.gate.layer", "mlp.gate"},
                                                       {"block_sparse_moe", "mlp"},
                                                       {"mlp.input_linear.weight", "mlp.experts.gate_up_proj"},
                                                       {"mlp.output_linear.weight", "mlp.experts.down_proj"}}};

// For each layer: it attends. Without the key none does.
Result<std::vector<bool>> attention_layers(const JsonValue& text, uint32_t n_layers) {
    std::vector<bool> attends(n_layers, false);
    for (const char* key : {"layer_types", "layers_block_type"}) {
        const auto types = text.find(key);
        if (!types) continue;
        TRY_ASSIGN(const auto names, types->as_array());
        if (names.size() != n_layers)
            return types->error(format("expected {} entries (num_hidden_layers), found {}", n_layers, names.size()));
        for (uint32_t layer = 0; layer < n_layers; ++layer) {
            TRY_ASSIGN(const auto name, names[layer].as_string());
            attends[layer] = name == "attention" || name == "full_attention";
            if (!attends[layer] && name != "mamba" && name != "linear_attention")
                return names[layer].error("expected attention or mamba, found " + names[layer].describe());
        }
        break;
    }
    if (std::ranges::find(attends, true) == attends.end())
        return text.error("layer_types: expected at least one layer of attention, found none");
    return attends;
}

// A number, or infinity as transformers writes it: {"__float__": "Infinity"}.
Result<float> bound_of(const JsonValue& value) {
    if (value.is_object()) {
        TRY_ASSIGN(const std::string_view text, value.string_or("__float__", ""));
        if (text == "Infinity") return std::numeric_limits<float>::infinity();
        return value.error("expected a number or infinity, found " + value.describe());
    }
    TRY_ASSIGN(const double number, value.as_number());
    if (!(number >= 0.0)) return value.error("expected a positive number, found " + value.describe());
    return static_cast<float>(number);
}

Result<MambaFacts> read_mamba(const JsonValue& text, uint32_t hidden_size) {
    MambaFacts mamba;
    TRY_ASSIGN(mamba.n_heads, uint_or(text, "mamba_n_heads", 128, kMambaSizeMax));
    TRY_ASSIGN(mamba.n_groups, uint_or(text, "mamba_n_groups", 1, kMambaSizeMax));
    TRY_ASSIGN(mamba.state_size, uint_or(text, "mamba_d_state", 256, kMambaSizeMax));
    TRY_ASSIGN(mamba.taps, uint_or(text, "mamba_d_conv", 4, kMambaSizeMax));
    TRY_ASSIGN(mamba.conv_bias, text.bool_or("mamba_conv_bias", true));
    TRY_ASSIGN(mamba.proj_bias, text.bool_or("mamba_proj_bias", false));
    TRY_ASSIGN(const uint32_t expand, uint_or(text, "mamba_expand", 2, 1024));
    const uint64_t inner = uint64_t{expand} * hidden_size;
    const auto head_dim = text.find("mamba_d_head");
    const bool is_auto = !head_dim || (head_dim->is_string() && *head_dim->as_string() == "auto");
    if (!is_auto) {
        TRY_ASSIGN(mamba.head_dim, uint_or(text, "mamba_d_head", 0, kMambaSizeMax));
    } else if (mamba.n_heads != 0) {
        mamba.head_dim = static_cast<uint32_t>(inner / mamba.n_heads);
    }
    if (uint64_t{mamba.n_heads} * mamba.head_dim != inner) {
        return text.error(
            format("mamba_n_heads: expected heads of together {} (mamba_expand * hidden_size), found {} of {}", inner,
                   mamba.n_heads, mamba.head_dim));
    }
    if (const auto limit = text.find("time_step_limit")) {
        TRY_ASSIGN(const auto bounds, limit->as_array());
        if (bounds.size() != 2) return limit->error(format("expected two bounds, found {}", bounds.size()));
        TRY_ASSIGN(mamba.dt_min, bound_of(bounds[0]));
        TRY_ASSIGN(mamba.dt_max, bound_of(bounds[1]));
        if (mamba.dt_min > mamba.dt_max)
            return limit->error("expected the smaller bound first, found " + limit->dump());
    }
    if (gpu::can_mix(mamba_shape(mamba))) return mamba;
    return text.error(
        format("mamba_*: expected heads that are a multiple of the groups, heads and states of up to {}, of a group's "
               "heads together a multiple of 4, and 2 to {} taps; found {} heads of {} in {} "
               "groups, states of {}, {} taps",
               gpu::kDeltaHeadMax, gpu::kConvTapsMax, mamba.n_heads, mamba.head_dim, mamba.n_groups, mamba.state_size,
               mamba.taps));
}

Status put_experts(const JsonValue& text, uint32_t expert_size, ModelConfig& config) {
    ExpertFacts experts{
        .size = expert_size, .router = Router::kTopThenSoftmax, .shared_size = config.intermediate_size};
    TRY_ASSIGN(experts.n, uint_or(text, "num_local_experts", 8, kMambaSizeMax));
    TRY_ASSIGN(experts.top_k, uint_or(text, "num_experts_per_tok", 2, kMambaSizeMax));
    if (experts.n == 0) return ok_status();
    TRY(check_experts(text, experts));
    config.spellings = kExpertSpellings;
    for (LayerFacts& layer : config.layers) {
        layer.ffn.kind = FeedForward::kExperts;
        layer.ffn.experts = experts;
    }
    return ok_status();
}

}  // namespace

Status read_granite_hybrid(const JsonValue& text, const Family& family, ModelConfig& config) {
    TRY_ASSIGN(const std::vector<bool> attends, attention_layers(text, config.n_layers));
    TRY_ASSIGN(const std::string_view positions, text.string_or("position_embedding_type", "nope"));
    if (positions != "rope" && positions != "nope")
        return text.error("position_embedding_type: expected rope or nope, found " + std::string(positions));
    const uint32_t expert_size = config.intermediate_size;
    TRY_ASSIGN(config.intermediate_size, uint_or(text, "shared_intermediate_size", 1024, kMambaSizeMax));
    if (config.intermediate_size == 0)
        return text.error("shared_intermediate_size: expected a positive number, found 0");
    config.fused_gate_up = true;
    config.spellings = kDenseSpellings;
    TRY(read_granite(text, family, config));
    const bool has_mamba = std::ranges::find(attends, false) != attends.end();
    MambaFacts mamba;
    if (has_mamba) {
        TRY_ASSIGN(mamba, read_mamba(text, config.hidden_size));
    }
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        LayerFacts& facts = config.layers[layer];
        facts.ffn.size = config.intermediate_size;
        if (positions == "nope") facts.attention.rope = kNoRope;
        if (attends[layer]) continue;
        facts.mixer = Mixer::kMamba;
        facts.attention = {};
        facts.mamba = mamba;
    }
    return put_experts(text, expert_size, config);
}

}  // namespace lorad::model
