#include "model/exec/kv_precision.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gpu/kernels/attention/kv_format.h"
#include "proto/base/check.h"
#include "proto/base/format.h"
#include "proto/base/log.h"

namespace lorad::model {
namespace {

// The expected maximum of 32 normal values, in standard deviations.
constexpr double kTopOfGroup = 2.2;

bool is_turned(uint32_t d, const RopeConfig& rope) {
    return d % pair_stride(rope) < rope.rotary_dim / 2 && d < 2 * pair_stride(rope);
}

// Squares of what a head's channels may hold at some position: rope rotates a channel into its partner and back.
std::vector<double> turned_squares(std::span<const float> values, const RopeConfig& rope) {
    std::vector<double> squares(values.size());
    for (size_t d = 0; d < values.size(); ++d) squares[d] = double{values[d]} * values[d];
    for (uint32_t d = 0; d < rope.rotary_dim / 2; ++d)
        squares[d] = squares[d + pair_stride(rope)] = squares[d] + squares[d + pair_stride(rope)];
    return squares;
}

// The variance of each channel's rounding error in one head of keys.
std::vector<double> rounding_variances(std::span<const float> bias, std::span<const float> norm, uint32_t head_dim,
                                       const RopeConfig& rope) {
    std::vector<double> tops(head_dim, 0.0), variances(head_dim, 0.0);
    const auto add = [&](std::span<const float> values, double factor) {
        const std::vector<double> squares = turned_squares(values, rope);
        for (uint32_t d = 0; d < squares.size(); ++d) tops[d] += std::sqrt(squares[d]) * factor;
    };
    if (!bias.empty()) add(bias, 1.0);
    if (!norm.empty()) add(norm, kTopOfGroup);
    for (uint32_t begin = 0; begin < head_dim; begin += gpu::kKvGroupSize) {
        const uint32_t end = std::min(begin + gpu::kKvGroupSize, head_dim);
        const double step = *std::max_element(tops.begin() + begin, tops.begin() + end) / 127.0;
        std::fill(variances.begin() + begin, variances.begin() + end, step * step / 12.0);
    }
    return variances;
}

std::vector<float> floats_of(const TensorFiles& files, const std::string& name) {
    const Tensor* tensor = files.find(name);
    CHECK(tensor != nullptr);
    return numbers_of(*tensor);
}

}  // namespace

double key_noise(const KeyStatistics& layer, const AttentionFacts& attention, const RopeConfig& rope) {
    const uint32_t head_dim = attention.head_dim, group = attention.n_heads / attention.n_kv_heads;
    const auto head_of = [&](std::span<const float> values, uint32_t head) {
        return values.empty() ? values : values.subspan(head * head_dim, head_dim);
    };
    double worst = 0.0;
    for (uint32_t kv_head = 0; kv_head < attention.n_kv_heads; ++kv_head) {
        const std::vector<double> variances =
            rounding_variances(head_of(layer.k_bias, kv_head), layer.k_norm, head_dim, rope);
        for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
            double variance = 0.0;
            for (const auto values : {head_of(layer.q_bias, head), layer.q_norm}) {
                if (values.empty()) continue;
                const std::vector<double> squares = turned_squares(values, rope);
                // The two channels of a pair share its square, on the average over positions.
                for (uint32_t d = 0; d < head_dim; ++d)
                    variance += variances[d] * squares[d] / (is_turned(d, rope) ? 2.0 : 1.0);
            }
            worst = std::max(worst, variance);
        }
    }
    return std::sqrt(worst) * attention.scale;
}

KvFormat fitting_kv_format(gpu::KvType wanted, const TensorFiles& files, const ModelConfig& config) {
    KvFormat format(wanted);
    if (wanted != gpu::KvType::kInt8) return format;
    std::vector<bool> keys_f16(config.n_layers, false);
    uint32_t n_layers = 0;
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        const LayerFacts facts = config.layer(layer);
        const AttentionFacts& attention = facts.attention;
        if (facts.mixer != Mixer::kAttention || attention.kv_from) continue;
        const bool has_biases = attention.qkv_bias && !config.fused_qkv;
        const std::string prefix = lorad::format("model.layers.{}.self_attn.", layer);
        std::vector<float> q_bias, k_bias, q_norm, k_norm;
        if (has_biases) {
            q_bias = floats_of(files, prefix + "q_proj.bias");
            k_bias = floats_of(files, prefix + "k_proj.bias");
        }
        if (attention.qk_norm == QkNorm::kPerHead) {
            q_norm = floats_of(files, prefix + "q_norm.weight");
            k_norm = floats_of(files, prefix + "k_norm.weight");
            for (std::vector<float>* norm : {&q_norm, &k_norm}) {
                for (float& value : *norm) value += config.one_plus_norms && !config.norms_hold_one ? 1.0f : 0.0f;
            }
        }
        // Not <=: what is no number is not fit for eight bits either.
        keys_f16[layer] = !(key_noise({q_bias, k_bias, q_norm, k_norm}, attention,
                                      config.rope_of(attention.rope == kNoRope ? 0 : attention.rope)) <= kKeyNoiseMax);
        n_layers += keys_f16[layer] ? 1 : 0;
    }
    if (n_layers == 0) return format;
    log_info("8-bit KV cache: {} of {} layers keep keys in 16 bits, which their biases ask for", n_layers,
             config.n_layers);
    format.keys_f16 = std::move(keys_f16);
    return format;
}

bool needs_f32_keys(const KvFormat& fitting, const ModelConfig& config, gpu::ScalarType act_type) {
    return fitting.type == gpu::KvType::kF16 && act_type == gpu::ScalarType::kF32 &&
           std::ranges::any_of(config.layers, [](const LayerFacts& layer) {
               return layer.mixer == Mixer::kAttention && layer.attention.sensitive_keys;
           });
}

}  // namespace lorad::model
