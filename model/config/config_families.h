// The families of models: what each one's code does that its config.json does not say, the defaults of keys that may be
// left out, and how the rest is read.
// Adding a family is a row in config_families.cpp, and a reader where its layers are more than Llama's. Internal to
// config.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "model/config/config.h"
#include "model/config/config_rope.h"
#include "proto/base/result.h"
#include "proto/json/json.h"

namespace lorad::model {

enum class Biases : uint8_t { kNone, kQkv, kAsConfigured };  // kAsConfigured: attention_bias, on q, k, v and o
// kUpperLayers: use_sliding_window, max_window_layers
enum class Window : uint8_t { kNone, kAllLayers, kUpperLayers, kByReader };

// Defaults of keys that may be left out; 0: the key is required.
struct SizeDefaults {
    uint32_t vocab = 0, hidden = 0, ffn = 0, layers = 0, heads = 0, kv_heads = 0, positions = 0;
};

struct Family {
    std::string_view name;        // "LlamaForCausalLM"
    std::string_view model_type;  // of the config, or of its text_config
    // the class around it that reads more than text; its config has the text's in text_config
    std::string_view wrapper = {};
    std::string_view wrapper_type = {};
    Biases attention_bias = Biases::kNone;
    bool bias_default = false;  // of attention_bias
    bool mlp_bias_key = false;  // mlp_bias is a key of it
    bool qk_norm = false;
    bool fused = false;  // qkv_proj and gate_up_proj
    bool gelu = false;   // the activation is gelu_pytorch_tanh, of hidden_activation
    bool one_plus_norms = false;
    bool wide_activations = false;
    bool tied_default = false;  // of tie_word_embeddings
    Window window = Window::kNone;
    bool kv_heads_default_to_heads = false;  // else num_key_value_heads must be there, or has a default
    uint32_t head_dim_default = 0;           // 0: hidden_size / num_attention_heads
    uint32_t window_default = 0;             // where sliding_window is absent; null is none
    double eps_default = 1e-6;
    RopeDefaults rope = {};
    SizeDefaults sizes = {};
    std::span<const Spelling> spellings = {};
    // Fills ModelConfig::layers and what belongs to them. `text` is the text part of config.json, whose common keys
    // have been read. Without one all layers are Llama's, with the facts above, and config.rope has been read.
    Status (*read_layers)(const JsonValue& text, const Family& family, ModelConfig& config) = nullptr;
    // that change results and are read by read_layers: see check_other_keys()
    std::span<const std::string_view> keys = {};
};

// The family of a config.json, by its architectures, or by its model_type.
Result<const Family*> find_family(const JsonValue& root);
std::string supported_families();

// Keys that a family says its reader reads.
struct FamilyKeys {
    std::string_view name;
    std::span<const std::string_view> keys;
};
std::vector<FamilyKeys> families_with_keys();

// Refuses keys that change results and that this family's reader does not read, unless their value is the one that
// changes nothing.
Status check_other_keys(const JsonValue& text, const Family& family);

}  // namespace lorad::model
