#include "model/config/config_readers.h"

#include <cmath>

#include "model/config/config_rope.h"
#include "proto/base/format.h"

namespace lorad::model {

Result<float> float_or(const JsonValue& text, std::string_view key, double fallback, double min, double max) {
    TRY_ASSIGN(const double number, text.number_or(key, fallback));
    if (!(number >= min && number <= max))
        return text.error(format("{}: expected {:g} to {:g}, found {:g}", key, min, max, number));
    return static_cast<float>(number);
}

Result<uint32_t> uint_or(const JsonValue& text, std::string_view key, uint32_t fallback, uint32_t max) {
    TRY_ASSIGN(const int64_t number, text.int_or(key, fallback, 0, max));
    return static_cast<uint32_t>(number);
}

Result<uint32_t> window_of(const JsonValue& text, const Family& family, const ModelConfig& config) {
    TRY_ASSIGN(const uint32_t window,
               uint_or(text, "sliding_window", text.has("sliding_window") ? 0 : family.window_default, 1u << 30));
    return window >= config.max_positions ? 0 : window;
}

Result<std::vector<bool>> full_layers(const JsonValue& text, uint32_t n_layers, uint32_t every) {
    std::vector<bool> full;
    const auto types = text.find("layer_types");
    if (!types) {
        for (uint32_t layer = 0; layer < n_layers; ++layer) full.push_back(every != 0 && (layer + 1) % every == 0);
        return full;
    }
    TRY_ASSIGN(const auto names, types->as_array());
    if (names.size() != n_layers)
        return types->error(format("expected {} entries (num_hidden_layers), found {}", n_layers, names.size()));
    for (const JsonValue& one : names) {
        TRY_ASSIGN(const auto name, one.as_string());
        if (name != "sliding_attention" && name != "full_attention")
            return one.error("expected full_attention or sliding_attention, found " + one.describe());
        full.push_back(name == "full_attention");
    }
    return full;
}

std::string head_size_error(uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim) {
    if (n_kv_heads == 0 || n_heads % n_kv_heads != 0)
        return format("num_attention_heads {} is not a multiple of num_key_value_heads {}", n_heads, n_kv_heads);
    if (head_dim == 0 || head_dim % kHeadDimMultiple != 0 || head_dim > kHeadDimMax) {
        return format("head_dim: expected a multiple of {} up to {}, found {}", kHeadDimMultiple, kHeadDimMax,
                      head_dim);
    }
    return {};
}

std::vector<LayerFacts> usual_layers(const ModelConfig& config) {
    std::vector<LayerFacts> layers;
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) layers.push_back(config.layer(layer));
    return layers;
}

Status read_smollm3(const JsonValue& text, const Family&, ModelConfig& config) {
    std::vector<LayerFacts> layers = usual_layers(config);
    TRY_ASSIGN(const uint32_t interval, uint_or(text, "no_rope_layer_interval", 4, 1u << 20));
    const auto list = text.find("no_rope_layers");
    std::vector<JsonValue> turned;
    if (list) {
        TRY_ASSIGN(turned, list->as_array());
        if (turned.size() != config.n_layers)
            return list->error(
                format("expected {} entries (num_hidden_layers), found {}", config.n_layers, turned.size()));
    }
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        bool turns = interval == 0 || (layer + 1) % interval != 0;
        if (list) {
            TRY_ASSIGN(const int64_t flag, turned[layer].as_int(0, 1));
            turns = flag != 0;
        }
        if (!turns) layers[layer].attention.rope = kNoRope;
    }
    config.layers = std::move(layers);
    return ok_status();
}

Status read_olmo2(const JsonValue&, const Family&, ModelConfig& config) {
    std::vector<LayerFacts> layers = usual_layers(config);
    for (LayerFacts& layer : layers) {
        layer.mixer_norm = layer.ffn_norm = {.before = false, .after = true};
        layer.attention.qk_norm = QkNorm::kFullWidth;
    }
    config.layers = std::move(layers);
    return ok_status();
}

Status read_olmo3(const JsonValue& text, const Family& family, ModelConfig& config) {
    TRY(read_olmo2(text, family, config));
    TRY_ASSIGN(const std::vector<bool> full, full_layers(text, config.n_layers, 4));
    TRY_ASSIGN(const uint32_t window, window_of(text, family, config));
    TRY_ASSIGN(RopePair ropes,
               read_rope_pair(text, config.head_dim, config.head_dim, config.max_positions, family.rope));
    config.rope = std::move(ropes.full);
    config.more_ropes = {std::move(ropes.sliding)};
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        config.layers[layer].attention.rope = full[layer] ? 0 : 1;
        config.layers[layer].attention.window = full[layer] ? 0 : window;
    }
    return ok_status();
}

Status read_granite(const JsonValue& text, const Family&, ModelConfig& config) {
    constexpr double kMin = 1e-6, kMax = 1e6;
    TRY_ASSIGN(config.embed_scale, float_or(text, "embedding_multiplier", 1.0, kMin, kMax));
    TRY_ASSIGN(const float logits_scaling, float_or(text, "logits_scaling", 1.0, kMin, kMax));
    TRY_ASSIGN(const float scale, float_or(text, "attention_multiplier", 1.0, kMin, kMax));
    TRY_ASSIGN(const float residual, float_or(text, "residual_multiplier", 1.0, kMin, kMax));
    config.logit_scale = 1.0f / logits_scaling;
    std::vector<LayerFacts> layers = usual_layers(config);
    for (LayerFacts& layer : layers) {
        layer.attention.scale = scale;
        // scores of twice the usual size
        layer.attention.sensitive_keys = scale * std::sqrt(static_cast<float>(config.head_dim)) >= 2.0f;
        layer.residual_multiplier = residual;
    }
    config.layers = std::move(layers);
    return ok_status();
}

Status read_ministral3(const JsonValue& text, const Family&, ModelConfig& config) {
    PositionScale scale{.original = config.rope.original_max_positions};
    TRY_ASSIGN(const std::optional<JsonValue> rope, rope_object(text));
    if (rope) {
        TRY_ASSIGN(scale.beta, float_or(*rope, "llama_4_scaling_beta", 0.0, 0.0, 100.0));
    }
    if (scale.beta != 0.0f && scale.original == 0)
        return text.error("llama_4_scaling_beta: expected original_max_position_embeddings beside it, found none");
    std::vector<LayerFacts> layers = usual_layers(config);
    for (LayerFacts& layer : layers) layer.attention.position_scale = scale;
    config.layers = std::move(layers);
    return ok_status();
}

}  // namespace lorad::model
