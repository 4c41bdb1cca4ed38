#include "model/config/topology.h"

#include <array>
#include <bit>
#include <cmath>
#include <string_view>

#include "proto/base/format.h"

namespace lorad::model {
namespace {

constexpr std::array<std::string_view, 23> kFeatureNames = {"layers that differ",
                                                            "layers without attention",
                                                            "experts",
                                                            "norms behind a part",
                                                            "no norms in front of a part",
                                                            "norms over all query heads",
                                                            "GELU",
                                                            "clamped activations",
                                                            "output gates",
                                                            "attention sinks",
                                                            "capped scores",
                                                            "shared keys and values",
                                                            "values that are keys",
                                                            "norms of values",
                                                            "rope by layer",
                                                            "proportional rope",
                                                            "queries scaled by position",
                                                            "residual multipliers",
                                                            "scaled residual streams",
                                                            "embeddings per layer",
                                                            "a scaled embedding",
                                                            "a scale of scores",
                                                            "scaled or capped logits"};

uint32_t features_of(const AttentionFacts& attention) {
    uint32_t features = 0;
    const auto add = [&](bool is_there, Feature feature) { features |= is_there ? feature : 0u; };
    add(attention.qk_norm == QkNorm::kFullWidth, kFeatureWideQkNorm);
    add(attention.output_gate, kFeatureOutputGate);
    add(attention.sinks, kFeatureSinks);
    add(attention.softcap != 0.0f, kFeatureSoftcap);
    add(attention.kv_from.has_value(), kFeatureSharedKv);
    add(attention.k_is_v, kFeatureKIsV);
    add(attention.v_norm, kFeatureVNorm);
    add(attention.rope != 0, kFeatureRopeByLayer);
    add(attention.position_scale.beta != 0.0f, kFeaturePositionScale);
    add(attention.scale != 1.0f / std::sqrt(static_cast<float>(attention.head_dim)), kFeatureScoreScale);
    return features;
}

// Returns true if everything that sizes, matrices and biases depend on is the same.
bool are_alike(const LayerFacts& a, const LayerFacts& b) {
    const AttentionFacts &x = a.attention, &y = b.attention;
    return a.mixer == b.mixer && x.n_heads == y.n_heads && x.n_kv_heads == y.n_kv_heads && x.head_dim == y.head_dim &&
           x.qkv_bias == y.qkv_bias && x.o_bias == y.o_bias && x.k_rows() == y.k_rows() && x.v_rows() == y.v_rows() &&
           a.ffn == b.ffn && a.mixer_norm == b.mixer_norm && a.ffn_norm == b.ffn_norm;
}

}  // namespace

ModelTopology topology_of(const ModelConfig& config) {
    ModelTopology topology;
    const auto add = [&](bool is_there, Feature feature) { topology.features |= is_there ? feature : 0u; };
    const LayerFacts first = config.layer(0);
    for (uint32_t index = 0; index < config.n_layers; ++index) {
        const LayerFacts layer = config.layer(index);
        add(!are_alike(first, layer), kFeatureLayersDiffer);
        if (layer.mixer == Mixer::kAttention)
            topology.features |= features_of(layer.attention);
        else
            topology.features |= kFeatureOtherMixers;
        add(layer.ffn.kind != FeedForward::kDense, kFeatureExperts);
        add(layer.ffn.activation != gpu::Activation::kSilu, kFeatureGelu);
        add(layer.ffn.clamp_limit != 0.0f, kFeatureClamps);
        add(layer.mixer_norm.after || layer.ffn_norm.after, kFeatureNormsAfter);
        add(!layer.mixer_norm.before || !layer.ffn_norm.before, kFeatureNoNormsBefore);
        add(layer.residual_multiplier != 1.0f, kFeatureResidualMultiplier);
        add(layer.stream_scale, kFeatureStreamScale);
        add(layer.per_layer_input != 0, kFeaturePerLayerInput);
    }
    for (uint32_t rope = 0; rope < config.n_ropes(); ++rope)
        add(config.rope_of(rope).pair_stride != 0, kFeatureOddPairs);
    add(config.embed_scale != 1.0f, kFeatureEmbedScale);
    add(config.logit_scale != 1.0f || config.final_softcap != 0.0f, kFeatureLogits);
    return topology;
}

std::string features_beyond(const ModelTopology& topology, uint32_t supported) {
    std::string text;
    for (uint32_t rest = topology.features & ~supported; rest != 0; rest &= rest - 1) {
        text += format("{}{}", text.empty() ? "" : ", ", kFeatureNames[static_cast<size_t>(std::countr_zero(rest))]);
    }
    return text;
}

}  // namespace lorad::model
