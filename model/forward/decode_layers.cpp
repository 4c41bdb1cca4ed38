#include "model/forward/decode_layers.h"

#include <algorithm>
#include <vector>

#include "gpu/upload.h"
#include "model/config/topology.h"
#include "model/forward/scratch.h"

namespace lorad::model {
namespace {

// Supported beside Llama's layers (topology.h); the embedding and the output have dispatches of their own.
constexpr uint32_t kDecodeLayersSupport = kFeatureNormsAfter | kFeatureNoNormsBefore | kFeatureWideQkNorm |
                                          kFeatureGelu | kFeatureSoftcap | kFeatureRopeByLayer | kFeaturePositionScale |
                                          kFeatureResidualMultiplier | kFeatureEmbedScale | kFeatureScoreScale |
                                          kFeatureLogits;

// Returns true if the layers differ in nothing but windows and rope, and ropes in nothing but their tables.
bool have_alike_parts(const ModelConfig& config) {
    const LayerFacts first = config.layer(0);
    if (first.mixer_norm != first.ffn_norm) return false;
    for (uint32_t rope = 0; rope < config.n_ropes(); ++rope) {
        if (config.rope_of(rope).rotary_dim != config.rope.rotary_dim) return false;
    }
    for (uint32_t l = 1; l < config.n_layers; ++l) {
        LayerFacts layer = config.layer(l);
        layer.attention.window = first.attention.window;
        layer.attention.rope = first.attention.rope;
        if (layer != first) return false;
    }
    return true;
}

gpu::DecodeFamily family_of(const ModelConfig& config) {
    const LayerFacts first = config.layer(0);
    const PositionScale& scale = first.attention.position_scale;
    return {.activation = first.ffn.activation,
            .norms_before = first.mixer_norm.before,
            .norms_after = first.mixer_norm.after,
            .wide_qk_norms = first.attention.qk_norm == QkNorm::kFullWidth,
            .by_layer = topology_of(config).has(kFeatureRopeByLayer),
            .softcap = first.attention.softcap,
            .multiplier = first.residual_multiplier,
            .position_beta = scale.beta,
            .position_original = scale.beta != 0.0f ? std::max(scale.original, 1u) : 1u};
}

}  // namespace

gpu::DecodeLayersShape decode_layers_shape(const ModelConfig& config, const ModelWeights& weights, uint32_t n_splits,
                                           bool lora, uint32_t lora_type) {
    return {.type = weights.layers.front().qkv.type,
            .hidden = config.hidden_size,
            .n_q_heads = config.n_heads,
            .n_kv_heads = config.n_kv_heads,
            .head_dim = config.head_dim,
            .rotary_dim = config.rope.rotary_dim,
            .ffn = config.intermediate_size,
            .n_splits = n_splits,
            .lora = lora,
            .lora_type = lora_type,
            .family = family_of(config)};
}

bool has_one_type(const ModelWeights& weights) {
    for (const LayerWeights& w : weights.layers) {
        for (const Matrix* matrix : {&w.qkv, &w.o, &w.gate_up, &w.down}) {
            if (matrix->type != weights.layers.front().qkv.type) return false;
        }
    }
    return true;
}

bool has_packed(const ModelWeights& weights) {
    return std::ranges::any_of(weights.layers, [](const LayerWeights& w) {
        return std::ranges::any_of(products_of(w), [](const Matrix* matrix) { return matrix->is_packed(); });
    });
}

// Of models whose activations may leave f16's range, matrices that are f16 because the device's other kernels compute
// in f32; this one packs activations in the matrices' type.
bool may_overflow(const ModelConfig& config, const ModelWeights& weights) {
    return config.wide_activations && weights.layers.front().qkv.type == gpu::ScalarType::kF16;
}

bool can_decode_layers(const gpu::PersistentPlanner& kernels, const ModelConfig& config, const ModelWeights& weights) {
    return topology_of(config).has_only(kDecodeLayersSupport) && have_alike_parts(config) && has_one_type(weights) &&
           !has_packed(weights) && !may_overflow(config, weights) &&
           kernels.can_decode_layers(decode_layers_shape(config, weights, 1));
}

Result<gpu::Buffer> decode_layer_table(gpu::Device& device, const ModelConfig& config, const ModelWeights& weights,
                                       const MergedWeights* merged, const KvCache& kv_cache,
                                       const RopeTables& rope_tables) {
    std::vector<gpu::DecodeLayer> layers;
    for (uint32_t l = 0; l < config.n_layers; ++l) {
        const LayerWeights& w = weights.layers[l];
        const AttentionFacts attention = config.layer(l).attention;
        layers.push_back({.qkv = address_of(w.qkv, merged),
                          .qkv_bias = address_of(w.qkv_bias, merged),
                          .o = address_of(w.o, merged),
                          .o_bias = address_of(w.o_bias, merged),
                          .gate_up = address_of(w.gate_up, merged),
                          .gate_up_bias = address_of(w.gate_up_bias, merged),
                          .down = address_of(w.down, merged),
                          .down_bias = address_of(w.down_bias, merged),
                          .input_norm = w.input_norm.address(),
                          .post_attention_norm = w.ffn_norm.address(),
                          .q_norm = w.q_norm.address(),
                          .k_norm = w.k_norm.address(),
                          .kv = kv_cache.layers[l].address(),
                          .window = attention.window,
                          .in_window_group = kv_cache.windowed[l],
                          .o_after = w.mixer_after_norm.address(),
                          .down_after = w.ffn_after_norm.address(),
                          .rope = rope_tables.of(attention)});
    }
    const std::span<const std::byte> bytes = std::as_bytes(std::span(layers));
    TRY_ASSIGN(gpu::Buffer table, device.create_buffer(bytes.size(), gpu::MemoryKind::kDeviceLocal, "decode layers"));
    TRY(device.uploader().upload(table, 0, bytes));
    return table;
}

Result<std::unique_ptr<DecodeLayers>> DecodeLayers::create(gpu::Device& device, const ModelConfig& config,
                                                           const ModelWeights& weights, const KvCache& kv_cache,
                                                           const RopeTables& rope_tables) {
    auto made = std::make_unique<DecodeLayers>();
    TRY_ASSIGN(made->table_, decode_layer_table(device, config, weights, nullptr, kv_cache, rope_tables));
    TRY_ASSIGN(made->sync_,
               device.create_buffer(sizeof(gpu::DecodeSync), gpu::MemoryKind::kDeviceLocal, "decode sync"));
    TRY_ASSIGN(made->given_up_, GivenUp::create(device, "decode given up"));
    const std::vector<uint64_t> silence(
        gpu::PersistentPlanner::decode_channel_words(decode_layers_shape(config, weights, 1), kDecodeSplitsMax));
    TRY_ASSIGN(made->channels_, device.create_buffer(silence.size() * sizeof(uint64_t), gpu::MemoryKind::kDeviceLocal,
                                                     "decode channels"));
    const gpu::DecodeSync nobody{};
    TRY(device.uploader().upload(made->channels_, 0, std::as_bytes(std::span(silence))));
    TRY(device.uploader().upload(made->sync_, 0, std::as_bytes(std::span(&nobody, 1))));
    return made;
}

}  // namespace lorad::model
