// Describes one decoder layer as data: how it mixes its rows, how it feeds forward, and where its norms are. Defaults
// are Llama's. Sizes are in elements.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "gpu/kernels/consumer_shape.h"

namespace lorad::model {

enum class Mixer : uint8_t { kAttention, kDeltaNet, kShortConv, kMamba };
// kDenseAndExperts (Gemma 4): both read the residual stream, each by a norm of its own, as the router does; what they
// give is normed and added.
enum class FeedForward : uint8_t { kDense, kExperts, kDenseAndExperts };

// The RMS norm of queries and keys before they are turned: of each head, or over all heads of a row at once.
enum class QkNorm : uint8_t { kNone, kPerHead, kFullWidth };

// Queries at position p are multiplied by 1 + beta ln(1 + floor(p / original)); beta 0: not.
struct PositionScale {
    float beta = 0.0f;
    uint32_t original = 0;
    bool operator==(const PositionScale&) const = default;
};

inline constexpr uint32_t kNoRope = UINT32_MAX;

struct AttentionFacts {
    uint32_t n_heads = 0;
    uint32_t n_kv_heads = 0;
    uint32_t head_dim = 0;
    uint32_t window = 0;   // tokens seen including the current one; 0: all
    uint32_t rope = 0;     // ModelConfig::rope_of(), or kNoRope: nothing is turned
    float scale = 0.0f;    // of the scores
    float softcap = 0.0f;  // scores become softcap tanh(score / softcap); 0: not
    QkNorm qk_norm = QkNorm::kNone;
    bool v_norm = false;  // RMS norm of each value head, without weights
    // q_proj has for each head its query rows, then its gate rows; the result is multiplied by the gate's sigmoid
    bool output_gate = false;
    // each head has one more score, a weight, which takes its share of the softmax and gives nothing
    bool sinks = false;
    bool k_is_v = false;  // values are what k_proj gives, before its norm; there is no v_proj
    std::optional<uint32_t> kv_from = std::nullopt;  // reads that layer's keys and values and makes none
    // rounding keys to f16 changes the logits by more than all else that is rounded: scores are not scaled down, or
    // keys have large biases
    bool sensitive_keys = false;
    bool qkv_bias = false;
    bool o_bias = false;
    PositionScale position_scale = {};

    uint32_t q_size() const { return n_heads * head_dim; }
    uint32_t kv_size() const { return n_kv_heads * head_dim; }
    // Rows of k_proj and v_proj; 0 where a layer has none.
    uint32_t k_rows() const { return kv_from ? 0 : kv_size(); }
    uint32_t v_rows() const { return kv_from || k_is_v ? 0 : kv_size(); }
    bool operator==(const AttentionFacts&) const = default;
};

// Gated delta net (Qwen3.5): n_key_heads divides n_value_heads.
struct DeltaFacts {
    uint32_t n_key_heads = 0, n_value_heads = 0;
    uint32_t key_head_dim = 0, value_head_dim = 0;
    uint32_t taps = 4;  // of the causal convolution

    uint32_t key_size() const { return n_key_heads * key_head_dim; }
    uint32_t value_size() const { return n_value_heads * value_head_dim; }
    uint32_t conv_size() const { return 2 * key_size() + value_size(); }
    bool operator==(const DeltaFacts&) const = default;
};

// Short convolution (LFM2).
struct ConvFacts {
    uint32_t taps = 3;
    bool bias = false;
    bool operator==(const ConvFacts&) const = default;
};

// Mamba 2 (Granite 4): n_groups divides n_heads; the heads of a group have one B and C, and one norm.
struct MambaFacts {
    uint32_t n_heads = 0, head_dim = 0;
    uint32_t n_groups = 0, state_size = 0;
    uint32_t taps = 4;  // of the causal convolution
    bool conv_bias = true;
    bool proj_bias = false;                                                // of both products
    float dt_min = 0.0f, dt_max = std::numeric_limits<float>::infinity();  // time steps are within

    uint32_t inner_size() const { return n_heads * head_dim; }
    uint32_t conv_size() const { return inner_size() + 2 * n_groups * state_size; }
    bool operator==(const MambaFacts&) const = default;
};

enum class Router : uint8_t { kSoftmaxThenTop, kTopThenSoftmax, kSigmoidBias };

struct ExpertFacts {
    uint32_t n = 0;  // 0: none
    uint32_t top_k = 0;
    uint32_t size = 0;  // of an expert
    Router router = Router::kSoftmaxThenTop;
    bool normalise = true;             // the weights of the chosen ones are divided by their sum
    bool gate_up_interleaved = false;  // rows gate, up, gate, up, ...
    bool by_inputs = false;            // files hold the matrices [input][output]
    bool bias = false;                 // of router and experts
    uint32_t shared_size = 0;          // of the expert that every row passes; 0: none
    bool shared_gate = false;          // it is multiplied by the sigmoid of a product with one row
    float routed_scale = 1.0f;         // on the sum of the chosen ones
    bool operator==(const ExpertFacts&) const = default;
};

struct FfnFacts {
    FeedForward kind = FeedForward::kDense;
    uint32_t size = 0;  // of the dense part
    gpu::Activation activation = gpu::Activation::kSilu;
    // gpt-oss: gate <= limit, |up| <= limit, (up + 1) gate sigmoid(alpha gate); 0: not
    float clamp_alpha = 0.0f, clamp_limit = 0.0f;
    bool bias = false;
    ExpertFacts experts = {};
    bool operator==(const FfnFacts&) const = default;
};

// The places of a norm: on the residual stream in front of a part, on the part's output before it is added, or both.
struct NormPlaces {
    bool before = true;
    bool after = false;
    bool operator==(const NormPlaces&) const = default;
};

struct LayerFacts {
    Mixer mixer = Mixer::kAttention;
    AttentionFacts attention = {};  // of Mixer::kAttention,
    DeltaFacts delta = {};          // of kDeltaNet,
    ConvFacts conv = {};            // of kShortConv,
    MambaFacts mamba = {};          // of kMamba
    FfnFacts ffn = {};
    NormPlaces mixer_norm = {}, ffn_norm = {};
    float residual_multiplier = 1.0f;  // on what mixer and feed-forward add to the residual stream
    bool stream_scale = false;         // the residual stream is multiplied by a weight at the layer's end
    uint32_t per_layer_input = 0;      // numbers of the token's own embedding for this layer (Gemma 4); 0: none
    bool operator==(const LayerFacts&) const = default;
};

}  // namespace lorad::model
