// Gemma 2, 3 and 4.
#include <algorithm>
#include <cmath>
#include <optional>

#include "model/config/config_readers.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

constexpr double kCapMax = 1e6;

// Sets what all three families share: norms before and after each part, an embedding times sqrt(H), and GELU.
void make_common_layers(ModelConfig& config) {
    config.embed_scale = std::sqrt(static_cast<float>(config.hidden_size));
    config.layers = usual_layers(config);
    for (LayerFacts& layer : config.layers) {
        layer.mixer_norm = layer.ffn_norm = {.before = true, .after = true};
        layer.ffn.activation = gpu::Activation::kGeluTanh;
    }
}

// And attention to what has come before.
Status read_common(const JsonValue& text, ModelConfig& config) {
    if (const auto both = text.find("use_bidirectional_attention")) {
        // "vision": only between the parts of a picture.
        const bool is_of_pictures = both->is_string() && *both->as_string() == "vision";
        if (!is_of_pictures && !(both->is_bool() && !*both->as_bool())) {
            return both->error("expected false: embedding models of this family attend to what comes behind, which is "
                               "not supported, found " +
                               both->describe());
        }
    }
    make_common_layers(config);
    return ok_status();
}

Result<uint32_t> pattern_of(const JsonValue& text, uint32_t fallback) {
    for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern"}) {
        if (text.find(key)) return uint_or(text, key, fallback, 1u << 20);
    }
    return fallback;
}

struct Scores {
    float scale = 0.0f, softcap = 0.0f;
};

Result<Scores> read_scores(const JsonValue& text, double softcap_default) {
    Scores scores;
    TRY_ASSIGN(const float scalar, float_or(text, "query_pre_attn_scalar", 256.0, 1e-6, 1e6));
    TRY_ASSIGN(scores.softcap, float_or(text, "attn_logit_softcapping",
                                        text.has("attn_logit_softcapping") ? 0.0 : softcap_default, 0.0, kCapMax));
    scores.scale = 1.0f / std::sqrt(scalar);
    return scores;
}

Status read_final_softcap(const JsonValue& text, double fallback, ModelConfig& config) {
    constexpr std::string_view kKey = "final_logit_softcapping";
    TRY_ASSIGN(config.final_softcap, float_or(text, kKey, text.has(kKey) ? 0.0 : fallback, 0.0, kCapMax));
    return ok_status();
}

}  // namespace

Status read_gemma2(const JsonValue& text, const Family& family, ModelConfig& config) {
    TRY(read_common(text, config));
    TRY_ASSIGN(const Scores scores, read_scores(text, 50.0));
    TRY(read_final_softcap(text, 30.0, config));
    TRY_ASSIGN(config.rope, read_rope(text, config.head_dim, config.max_positions, family.rope));
    TRY_ASSIGN(const std::vector<bool> full, full_layers(text, config.n_layers, 2));
    TRY_ASSIGN(const uint32_t window, window_of(text, family, config));
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        AttentionFacts& attention = config.layers[layer].attention;
        attention.window = full[layer] ? 0 : window;
        attention.scale = scores.scale;
        attention.softcap = scores.softcap;
    }
    return ok_status();
}

void make_gemma3_layers(const std::vector<bool>& full, uint32_t window, float scale, ModelConfig& config) {
    make_common_layers(config);
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        AttentionFacts& attention = config.layers[layer].attention;
        attention.window = full[layer] ? 0 : window;
        attention.rope = full[layer] ? 0 : 1;
        attention.scale = scale;
    }
}

Status read_gemma3(const JsonValue& text, const Family& family, ModelConfig& config) {
    TRY(read_common(text, config));
    TRY_ASSIGN(const Scores scores, read_scores(text, 0.0));
    TRY(read_final_softcap(text, 0.0, config));
    TRY_ASSIGN(RopePair ropes,
               read_rope_pair(text, config.head_dim, config.head_dim, config.max_positions, family.rope));
    config.rope = std::move(ropes.full);
    config.more_ropes = {std::move(ropes.sliding)};
    TRY_ASSIGN(const uint32_t pattern, pattern_of(text, 6));
    TRY_ASSIGN(const std::vector<bool> full, full_layers(text, config.n_layers, pattern));
    TRY_ASSIGN(const uint32_t window, window_of(text, family, config));
    // transformers reads attn_logit_softcapping of Gemma 3 and applies it nowhere, unlike Gemma 2's; released files
    // have null.
    make_gemma3_layers(full, window, scores.scale, config);
    return ok_status();
}

namespace {

struct HeadSizes {
    uint32_t head_dim = 0, n_kv_heads = 0;
};

// Returns the sizes of each layer: per_layer_config names those that differ; older files give one size for full layers.
Result<std::vector<HeadSizes>> head_sizes(const JsonValue& text, const std::vector<bool>& full,
                                          const ModelConfig& config) {
    std::vector<HeadSizes> sizes(config.n_layers, {config.head_dim, config.n_kv_heads});
    const auto by_layer = text.find("per_layer_config");
    if (!by_layer) {
        TRY_ASSIGN(const uint32_t head_dim, uint_or(text, "global_head_dim", 512, 1u << 16));
        TRY_ASSIGN(const bool k_is_v, text.bool_or("attention_k_eq_v", false));
        TRY_ASSIGN(const uint32_t global_kv, uint_or(text, "num_global_key_value_heads", config.n_kv_heads, 1024));
        for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
            if (full[layer]) sizes[layer] = {head_dim, k_is_v ? global_kv : config.n_kv_heads};
        }
        return sizes;
    }
    TRY_ASSIGN(const auto members, by_layer->as_object());
    for (const auto& [key, own] : members) {
        uint64_t layer = 0;
        for (const char digit : key)
            layer = digit >= '0' && digit <= '9' && layer < config.n_layers
                        ? layer * 10 + static_cast<uint64_t>(digit - '0')
                        : config.n_layers;
        if (key.empty() || layer >= config.n_layers)
            return own.error(format("expected layers 0 to {}, found {}", config.n_layers - 1, json_quote_short(key)));
        TRY_ASSIGN(const auto facts, own.as_object());
        for (const auto& [name, value] : facts) {
            if (name != "head_dim" && name != "num_key_value_heads")
                return value.error(
                    format("expected head_dim or num_key_value_heads, found {}", json_quote_short(name)));
        }
        TRY_ASSIGN(sizes[layer].head_dim, uint_or(own, "head_dim", config.head_dim, 1u << 16));
        TRY_ASSIGN(sizes[layer].n_kv_heads, uint_or(own, "num_key_value_heads", config.n_kv_heads, 1024));
    }
    return sizes;
}

// Keys and values of the last layers are those of the last one of their kind in front of them.
Status share_keys(const JsonValue& text, const std::vector<bool>& full, ModelConfig& config) {
    TRY_ASSIGN(const uint32_t n_shared, uint_or(text, "num_kv_shared_layers", 0, config.n_layers));
    TRY_ASSIGN(const bool is_wide, text.bool_or("use_double_wide_mlp", false));
    const uint32_t first = config.n_layers - n_shared;
    for (uint32_t layer = first; n_shared != 0 && layer < config.n_layers; ++layer) {
        std::optional<uint32_t> from;
        for (uint32_t earlier = 0; earlier < first; ++earlier) {
            if (full[earlier] == full[layer]) from = earlier;
        }
        if (!from)
            return text.error(
                format("num_kv_shared_layers {}: layer {} finds no layer of its kind in front of layer {}", n_shared,
                       layer, first));
        config.layers[layer].attention.kv_from = from;
        if (is_wide) config.layers[layer].ffn.size *= 2;
    }
    return ok_status();
}

// Reads the experts beside the dense feed-forward of each layer.
Status read_gemma4_experts(const JsonValue& text, ModelConfig& config) {
    TRY_ASSIGN(const bool has_experts, text.bool_or("enable_moe_block", false));
    if (!has_experts) return ok_status();
    ExpertFacts experts;
    TRY_ASSIGN(experts.n, uint_or(text, "num_experts", 0, 1u << 20));
    TRY_ASSIGN(experts.top_k, uint_or(text, "top_k_experts", 0, 1u << 20));
    TRY_ASSIGN(experts.size, uint_or(text, "moe_intermediate_size", 0, 1u << 20));
    if (experts.size == 0)
        return text.error("moe_intermediate_size: expected the size of an expert beside enable_moe_block, found none");
    TRY(check_experts(text, experts));
    for (LayerFacts& layer : config.layers) {
        layer.ffn.kind = FeedForward::kDenseAndExperts;
        layer.ffn.experts = experts;
    }
    return ok_status();
}

Status read_per_layer_inputs(const JsonValue& text, ModelConfig& config) {
    TRY_ASSIGN(const uint32_t size, uint_or(text, "hidden_size_per_layer_input", 256, 1u << 16));
    TRY_ASSIGN(config.per_layer_vocab, uint_or(text, "vocab_size_per_layer_input", 262144, kVocabMax));
    if (size == 0) config.per_layer_vocab = 0;
    if (size % 4 != 0)
        return text.error(format("hidden_size_per_layer_input: expected a multiple of 4, found {}", size));
    for (LayerFacts& layer : config.layers) layer.per_layer_input = size;
    return ok_status();
}

}  // namespace

Status read_gemma4(const JsonValue& text, const Family& family, ModelConfig& config) {
    TRY(read_common(text, config));
    TRY(read_final_softcap(text, 30.0, config));
    TRY_ASSIGN(const uint32_t pattern, pattern_of(text, 6));
    TRY_ASSIGN(std::vector<bool> full, full_layers(text, config.n_layers, pattern));
    full.back() = true;
    TRY_ASSIGN(const std::vector<HeadSizes> sizes, head_sizes(text, full, config));
    TRY_ASSIGN(const bool k_is_v, text.bool_or("attention_k_eq_v", false));
    TRY_ASSIGN(const uint32_t window, window_of(text, family, config));
    std::optional<uint32_t> head_dims[2];  // of layers with a window, and full ones
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        LayerFacts& facts = config.layers[layer];
        AttentionFacts& attention = facts.attention;
        attention.head_dim = sizes[layer].head_dim;
        attention.n_kv_heads = sizes[layer].n_kv_heads;
        attention.scale = 1.0f;
        attention.sensitive_keys = true;
        attention.v_norm = true;
        attention.k_is_v = k_is_v && full[layer];
        attention.window = full[layer] ? 0 : window;
        attention.rope = full[layer] ? 0 : 1;
        facts.stream_scale = true;
        if (const std::string wrong = head_size_error(attention.n_heads, attention.n_kv_heads, attention.head_dim);
            !wrong.empty())
            return text.error(format("layer {}: {}", layer, wrong));
        std::optional<uint32_t>& of_kind = head_dims[full[layer] ? 1 : 0];
        if (of_kind && *of_kind != attention.head_dim)
            return text.error(format("layer {}: expected heads of {} as in other layers of its type, found {}", layer,
                                     *of_kind, attention.head_dim));
        of_kind = attention.head_dim;
    }
    TRY_ASSIGN(RopePair ropes,
               read_rope_pair(text, head_dims[1].value_or(config.head_dim), head_dims[0].value_or(config.head_dim),
                              config.max_positions, family.rope));
    config.rope = std::move(ropes.full);
    config.more_ropes = {std::move(ropes.sliding)};
    TRY(share_keys(text, full, config));
    TRY(read_gemma4_experts(text, config));
    return read_per_layer_inputs(text, config);
}

}  // namespace lorad::model
