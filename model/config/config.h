// A decoder-only transformer as data: everything that config.json says about the forward pass, checked.
// Adding an architecture means adding a row of facts in config.cpp, not a second forward pass.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/config/layer_facts.h"
#include "model/config/modules.h"
#include "model/files/safetensors.h"
#include "model/quant/quantization_config.h"
#include "proto/base/ids.h"
#include "proto/base/result.h"

namespace lorad::model {

// the last is how a config says pair_stride; a table has another
enum class RopeType : uint8_t { kDefault, kLinear, kLlama3, kYarn, kLongRope, kProportional };

// Rotary embedding as config.json gives it; model/config/rope.h makes the table from it.
struct RopeConfig {
    RopeType type = RopeType::kDefault;
    double theta = 10000.0;
    uint32_t rotary_dim = 0;  // even, at most head_dim; the rest of a head is not turned
    // Pair i < rotary_dim / 2 is the elements i and i + pair_stride, and turns by theta^(-2 i / exponent_dim). 0:
    // rotary_dim / 2, and rotary_dim.
    uint32_t pair_stride = 0, exponent_dim = 0;
    double factor = 1.0;
    uint32_t original_max_positions = 0;                   // llama3, yarn, longrope
    double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
    double beta_fast = 32.0, beta_slow = 1.0;              // yarn
    bool truncate = true;                                  // yarn: round the correction range to whole dimensions
    double attention_factor = 1.0;                         // yarn, longrope: multiplies cos and sin
    std::vector<double> short_factors, long_factors;       // longrope: rotary_dim / 2 each
    // rotary_dim / 2 that divide the frequencies before any scaling, as GGUF has llama3's; or none
    std::vector<double> frequency_factors;
};

// The distance from an element of a pair to the other one.
inline uint32_t pair_stride(const RopeConfig& rope) {
    return rope.pair_stride != 0 ? rope.pair_stride : rope.rotary_dim / 2;
}

// The defaults of requests, from generation_config.json.
struct GenerationDefaults {
    std::vector<TokenId> eos_token_ids;  // config.json's where generation_config.json has none
    float temperature = 1.0f;
    float top_p = 1.0f;
    uint32_t top_k = 0;  // 0: off
    float min_p = 0.0f;
    float repetition_penalty = 1.0f;
};

// A part of a tensor's name as a family's files have it, and as it is called here: Llama's word for the same thing.
struct Spelling {
    std::string_view file, ours;
};

struct ModelConfig {
    std::string architecture;  // "Qwen2ForCausalLM"
    uint32_t vocab_size = 0;
    uint32_t hidden_size = 0;
    uint32_t intermediate_size = 0;
    uint32_t n_layers = 0;
    uint32_t n_heads = 0;
    uint32_t n_kv_heads = 0;
    uint32_t head_dim = 0;
    uint32_t max_positions = 0;  // the context the model was made for
    float rms_norm_eps = 1e-6f;
    bool tied_embeddings = false;  // lm_head is embed_tokens
    // the config says so, but the files have an lm_head of their own: adapters::BaseModel::load()
    bool tied_by_name = false;
    bool qkv_bias = false;
    bool o_bias = false;
    bool mlp_bias = false;
    bool qk_norm = false;    // RMS norm of each query and key head before RoPE: QkNorm::kPerHead
    bool fused_qkv = false;  // the files hold qkv_proj (rows q, k, v)
    // the files hold in_proj_qkvz and in_proj_ba, whose rows lie by key head: fused_delta_rows()
    bool fused_delta = false;
    bool fused_gate_up = false;  // the files hold gate_up_proj (rows gate, up)
    std::optional<DType> dtype;  // one of the weight types: what the model was made in, where the config says it
    // how the files hold the weights of some layers in few bits; map_quantized_folder() reads them
    QuantizationConfig quantization;
    RopeConfig rope;
    std::vector<uint32_t> sliding_windows;  // [n_layers]; tokens seen including the current one; 0: all
    GenerationDefaults generation;

    // If all layers are alike (Llama and its like), the sizes, biases, norms, rope and windows above are every layer's.
    // Otherwise each layer's facts are here, [n_layers]; layer() gives them in both cases.
    std::vector<LayerFacts> layers;
    std::vector<RopeConfig> more_ropes;   // rope_of(1), rope_of(2), ...
    bool one_plus_norms = false;          // checkpoints and adapters of the family hold w - 1 of the RMS norms,
    bool norms_hold_one = false;          // but these files w
    bool wide_activations = false;        // values beyond f16
    float embed_scale = 1.0f;             // on the embedding's rows
    float logit_scale = 1.0f;             // on the logits, then
    float final_softcap = 0.0f;           // they become softcap tanh(logit / softcap); 0: not
    uint32_t per_layer_vocab = 0;         // tokens of the embedding per layer (LayerFacts::per_layer_input)
    std::span<const Spelling> spellings;  // of tensor names, of static life

    LayerFacts layer(uint32_t index) const;
    const RopeConfig& rope_of(uint32_t index) const { return index == 0 ? rope : more_ropes[index - 1]; }
    uint32_t n_ropes() const { return 1 + static_cast<uint32_t>(more_ropes.size()); }
    // Modules of a layer in the device's LoRA table.
    uint32_t lora_stride() const;
    LinearShape shape(uint32_t layer, LinearModule module) const;

    uint32_t q_size() const { return n_heads * head_dim; }
    uint32_t kv_size() const { return n_kv_heads * head_dim; }
    LinearShape shape(LinearModule module) const { return shape(0, module); }
};

// Reads config.json and, if it is there, generation_config.json of a Hugging Face folder. Understands both spellings:
// torch_dtype/rope_theta/rope_scaling and dtype/rope_parameters/layer_types.
// kInvalidModel names the file, the key, what was expected and what was found.
Result<ModelConfig> load_model_config(const std::filesystem::path& folder);

// The same from the two files' texts. `generation_text` may be empty: the file is optional.
Result<ModelConfig> parse_model_config(std::string_view config_text, std::string_view generation_text);

// "LlamaForCausalLM, MistralForCausalLM, ..."
std::string supported_architectures();

}  // namespace lorad::model
