// Decides which layers' keys an 8-bit KV cache can hold in eight bits.
//
// A group of 32 channels shares one scale, so a channel with a large constant part (Qwen2.5 has biases of keys above
// 200) makes all others of its group coarse, itself included, and queries of such models are large in the same
// channels. The effect on a layer's scores follows from its biases and head norms alone.
#pragma once

#include <span>

#include "gpu/kernels/scalar_type.h"
#include "model/config/config.h"
#include "model/exec/kv_cache.h"
#include "model/files/safetensors.h"

namespace lorad::model {

// What the weights say of a layer's queries and keys. A span is empty where the model has no such tensor.
struct KeyStatistics {
    std::span<const float> q_bias;  // [n_heads][head_dim]
    std::span<const float> k_bias;  // [n_kv_heads][head_dim]
    std::span<const float> q_norm;  // [head_dim], weights of the RMS norm of each head
    std::span<const float> k_norm;
};

// The change of scores by 8-bit keys (in the softmax's exponent): one standard deviation, for the worst head, from
// biases and norms. 0 if a layer has neither.
double key_noise(const KeyStatistics& layer, const AttentionFacts& attention, const RopeConfig& rope);

// Layers above it keep keys of 16 bits. Measured with Qwen2.5-Coder-0.5B, whose layers have 0.01 to 5.5: one with 0.1
// changes logits by 0.1 %, one with 5.5 by up to 90 %.
inline constexpr double kKeyNoiseMax = 0.1;

// `wanted`, with 16-bit keys in the layers that need them. `files` has all tensors that the config asks for.
KvFormat fitting_kv_format(gpu::KvType wanted, const TensorFiles& files, const ModelConfig& config);
// Returns true if f16 keys of such a format become f32: in a model with sensitive keys and f32 activations they would
// be the only values in f16.
bool needs_f32_keys(const KvFormat& fitting, const ModelConfig& config, gpu::ScalarType act_type);

}  // namespace lorad::model
