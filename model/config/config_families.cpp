#include "model/config/config_families.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

#include "model/config/config_readers.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

using Keys = std::span<const std::string_view>;

constexpr std::array<std::string_view, 4> kGemma2Keys = {"query_pre_attn_scalar", "final_logit_softcapping",
                                                         "attn_logit_softcapping", "use_bidirectional_attention"};
constexpr std::array<std::string_view, 6> kGemma3Keys = {"query_pre_attn_scalar",  "final_logit_softcapping",
                                                         "attn_logit_softcapping", "use_bidirectional_attention",
                                                         "sliding_window_pattern", "_sliding_window_pattern"};
constexpr std::array<std::string_view, 16> kGemma4Keys = {"final_logit_softcapping",    "use_bidirectional_attention",
                                                          "num_kv_shared_layers",       "hidden_size_per_layer_input",
                                                          "vocab_size_per_layer_input", "attention_k_eq_v",
                                                          "enable_moe_block",           "use_double_wide_mlp",
                                                          "per_layer_config",           "global_head_dim",
                                                          "num_global_key_value_heads", "num_experts",
                                                          "moe_intermediate_size",      "top_k_experts",
                                                          "sliding_window_pattern",     "_sliding_window_pattern"};
constexpr std::array<std::string_view, 2> kSmolLm3Keys = {"no_rope_layers", "no_rope_layer_interval"};
constexpr std::array<std::string_view, 4> kGraniteKeys = {"embedding_multiplier", "residual_multiplier",
                                                          "attention_multiplier", "logits_scaling"};
constexpr std::array<std::string_view, 8> kGraniteHybridKeys = {
    "embedding_multiplier", "residual_multiplier",     "attention_multiplier",     "logits_scaling",
    "num_local_experts",    "position_embedding_type", "shared_intermediate_size", "mamba_d_state"};
// The experts of a layer stand beside its feed-forward.
constexpr std::array<Spelling, 2> kGemma4Spellings = {{{"router.proj", "mlp.gate"}, {"experts", "mlp.experts"}}};

constexpr std::array<std::string_view, 1> kMinistralKeys = {"llama_4_scaling_beta"};

constexpr std::array<std::string_view, 3> kDeltaKeys = {"attn_output_gate", "linear_num_value_heads",
                                                        "linear_num_key_heads"};
constexpr std::array<std::string_view, 7> kDeltaMoeKeys = {
    "attn_output_gate",  "linear_num_value_heads", "linear_num_key_heads",           "num_experts",
    "num_local_experts", "moe_intermediate_size",  "shared_expert_intermediate_size"};
constexpr std::array<std::string_view, 3> kQwenMoeKeys = {"num_experts", "num_local_experts", "moe_intermediate_size"};
constexpr std::array<std::string_view, 1> kMixtralKeys = {"num_local_experts"};
constexpr std::array<std::string_view, 2> kGptOssKeys = {"num_local_experts", "swiglu_limit"};
constexpr std::array<std::string_view, 2> kLfm2Keys = {"conv_L_cache", "norm_eps"};
constexpr std::array<std::string_view, 4> kLfm2MoeKeys = {"conv_L_cache", "norm_eps", "num_experts",
                                                          "moe_intermediate_size"};

constexpr std::array<Spelling, 9> kLfm2Spellings = {{{"operator_norm", "input_layernorm"},
                                                     {"ffn_norm", "post_attention_layernorm"},
                                                     {"model.embedding_norm", "model.norm"},
                                                     {"self_attn.out_proj", "self_attn.o_proj"},
                                                     {"self_attn.q_layernorm", "self_attn.q_norm"},
                                                     {"self_attn.k_layernorm", "self_attn.k_norm"},
                                                     {"feed_forward.w1", "mlp.gate_proj"},
                                                     {"feed_forward.w3", "mlp.up_proj"},
                                                     {"feed_forward.w2", "mlp.down_proj"}}};
constexpr std::array<Spelling, 13> kLfm2MoeSpellings = {{{"operator_norm", "input_layernorm"},
                                                         {"ffn_norm", "post_attention_layernorm"},
                                                         {"model.embedding_norm", "model.norm"},
                                                         {"self_attn.out_proj", "self_attn.o_proj"},
                                                         {"self_attn.q_layernorm", "self_attn.q_norm"},
                                                         {"self_attn.k_layernorm", "self_attn.k_norm"},
                                                         {"feed_forward.w1", "mlp.gate_proj"},
                                                         {"feed_forward.w3", "mlp.up_proj"},
                                                         {"feed_forward.w2", "mlp.down_proj"},
                                                         {"feed_forward", "mlp"},
                                                         {"w1", "gate_proj"},
                                                         {"w3", "up_proj"},
                                                         {"w2", "down_proj"}}};
constexpr std::array<Spelling, 4> kMixtralSpellings = {
    {{"block_sparse_moe", "mlp"}, {"w1", "gate_proj"}, {"w3", "up_proj"}, {"w2", "down_proj"}}};
constexpr std::array<Spelling, 1> kGptOssSpellings = {{{"mlp.router", "mlp.gate"}}};

constexpr double kFar = 1e6;  // theta
constexpr RopeDefaults kQwen35Rope = {.theta = 1e7, .rotary_share = 0.25, .is_partial = true};

constexpr Family kFamilies[] = {
    {.name = "LlamaForCausalLM",
     .model_type = "llama",
     .attention_bias = Biases::kAsConfigured,
     .mlp_bias_key = true,
     .kv_heads_default_to_heads = true},
    {.name = "MistralForCausalLM",
     .model_type = "mistral",
     .wrapper = "Mistral3ForConditionalGeneration",
     .wrapper_type = "mistral3",
     .window = Window::kAllLayers,
     .window_default = 4096},
    {.name = "Qwen2ForCausalLM",
     .model_type = "qwen2",
     .attention_bias = Biases::kQkv,
     .window = Window::kUpperLayers,
     .window_default = 4096},
    {.name = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .attention_bias = Biases::kAsConfigured,
     .qk_norm = true,
     .window = Window::kUpperLayers,
     .head_dim_default = 128,
     .window_default = 4096},
    {.name = "Phi3ForCausalLM",
     .model_type = "phi3",
     .fused = true,
     .window = Window::kAllLayers,
     .kv_heads_default_to_heads = true,
     .eps_default = 1e-5,
     .rope = {.is_partial = true, .original_positions = 4096}},
    {.name = "Gemma2ForCausalLM",
     .model_type = "gemma2",
     .attention_bias = Biases::kAsConfigured,
     .gelu = true,
     .one_plus_norms = true,
     .wide_activations = true,
     .tied_default = true,
     .window = Window::kByReader,
     .head_dim_default = 256,
     .window_default = 4096,
     .sizes =
         {.vocab = 256000, .hidden = 2304, .ffn = 9216, .layers = 26, .heads = 8, .kv_heads = 4, .positions = 8192},
     .read_layers = read_gemma2,
     .keys = Keys(kGemma2Keys)},
    {.name = "Gemma3ForCausalLM",
     .model_type = "gemma3_text",
     .wrapper = "Gemma3ForConditionalGeneration",
     .wrapper_type = "gemma3",
     .attention_bias = Biases::kAsConfigured,
     .qk_norm = true,
     .gelu = true,
     .one_plus_norms = true,
     .wide_activations = true,
     .tied_default = true,
     .window = Window::kByReader,
     .head_dim_default = 256,
     .window_default = 4096,
     .rope = {.theta = kFar},
     .sizes =
         {.vocab = 262208, .hidden = 2304, .ffn = 9216, .layers = 26, .heads = 8, .kv_heads = 4, .positions = 131072},
     .read_layers = read_gemma3,
     .keys = Keys(kGemma3Keys)},
    {.name = "Gemma4ForCausalLM",
     .model_type = "gemma4_text",
     .wrapper = "Gemma4ForConditionalGeneration",
     .wrapper_type = "gemma4",
     .attention_bias = Biases::kAsConfigured,
     .qk_norm = true,
     .gelu = true,
     .wide_activations = true,
     .tied_default = true,
     .window = Window::kByReader,
     .head_dim_default = 256,
     .window_default = 512,
     .rope = {.theta = kFar, .rotary_share = 0.25, .is_partial = true},
     .sizes =
         {.vocab = 262144, .hidden = 2304, .ffn = 9216, .layers = 30, .heads = 8, .kv_heads = 4, .positions = 131072},
     .spellings = kGemma4Spellings,
     .read_layers = read_gemma4,
     .keys = Keys(kGemma4Keys)},
    {.name = "SmolLM3ForCausalLM",
     .model_type = "smollm3",
     .attention_bias = Biases::kAsConfigured,
     .mlp_bias_key = true,
     .tied_default = true,
     .window = Window::kUpperLayers,
     .rope = {.theta = 2e6},
     .sizes = {.kv_heads = 4},
     .read_layers = read_smollm3,
     .keys = Keys(kSmolLm3Keys)},
    {.name = "Olmo2ForCausalLM",
     .model_type = "olmo2",
     .attention_bias = Biases::kAsConfigured,
     .kv_heads_default_to_heads = true,
     .eps_default = 1e-5,
     .read_layers = read_olmo2},
    {.name = "Olmo3ForCausalLM",
     .model_type = "olmo3",
     .attention_bias = Biases::kAsConfigured,
     .window = Window::kByReader,
     .kv_heads_default_to_heads = true,
     .window_default = 4096,
     .eps_default = 1e-5,
     .rope = {.theta = 5e5, .sliding_theta = 5e5},
     .read_layers = read_olmo3},
    {.name = "GraniteForCausalLM",
     .model_type = "granite",
     .attention_bias = Biases::kAsConfigured,
     .mlp_bias_key = true,
     .kv_heads_default_to_heads = true,
     .read_layers = read_granite,
     .keys = Keys(kGraniteKeys)},
    {.name = "GraniteMoeHybridForCausalLM",
     .model_type = "granitemoehybrid",
     .attention_bias = Biases::kAsConfigured,
     .kv_heads_default_to_heads = true,
     .read_layers = read_granite_hybrid,
     .keys = Keys(kGraniteHybridKeys)},
    {.name = "Ministral3ForCausalLM",
     .model_type = "ministral3",
     .wrapper = "Mistral3ForConditionalGeneration",
     .wrapper_type = "mistral3",
     .window = Window::kAllLayers,
     .head_dim_default = 128,
     .eps_default = 1e-5,
     .rope = {.theta = kFar},
     .read_layers = read_ministral3,
     .keys = Keys(kMinistralKeys)},
    {.name = "Qwen3_5ForCausalLM",
     .model_type = "qwen3_5_text",
     .wrapper = "Qwen3_5ForConditionalGeneration",
     .wrapper_type = "qwen3_5",
     .attention_bias = Biases::kAsConfigured,
     .qk_norm = true,
     .one_plus_norms = true,
     .head_dim_default = 256,
     .rope = kQwen35Rope,
     .read_layers = read_qwen35,
     .keys = Keys(kDeltaKeys)},
    {.name = "Qwen3_5MoeForCausalLM",
     .model_type = "qwen3_5_moe_text",
     .wrapper = "Qwen3_5MoeForConditionalGeneration",
     .wrapper_type = "qwen3_5_moe",
     .attention_bias = Biases::kAsConfigured,
     .qk_norm = true,
     .one_plus_norms = true,
     .head_dim_default = 256,
     .rope = kQwen35Rope,
     .sizes = {.ffn = 5632},
     .read_layers = read_qwen35_moe,
     .keys = Keys(kDeltaMoeKeys)},
    {.name = "Qwen3NextForCausalLM",
     .model_type = "qwen3_next",
     .attention_bias = Biases::kAsConfigured,
     .qk_norm = true,
     .one_plus_norms = true,
     .head_dim_default = 256,
     .rope = {.rotary_share = 0.25, .is_partial = true},
     .sizes = {.ffn = 5632},
     .read_layers = read_qwen3_next,
     .keys = Keys(kDeltaMoeKeys)},
    {.name = "Qwen3MoeForCausalLM",
     .model_type = "qwen3_moe",
     .attention_bias = Biases::kAsConfigured,
     .qk_norm = true,
     .window = Window::kUpperLayers,
     .window_default = 4096,
     .sizes = {.ffn = 6144},
     .read_layers = read_qwen3_moe,
     .keys = Keys(kQwenMoeKeys)},
    {.name = "MixtralForCausalLM",
     .model_type = "mixtral",
     .window = Window::kAllLayers,
     .eps_default = 1e-5,
     .rope = {.theta = kFar},
     .sizes = {.kv_heads = 8},
     .spellings = kMixtralSpellings,
     .read_layers = read_mixtral,
     .keys = Keys(kMixtralKeys)},
    {.name = "GptOssForCausalLM",
     .model_type = "gpt_oss",
     .attention_bias = Biases::kAsConfigured,
     .bias_default = true,
     .head_dim_default = 64,
     .eps_default = 1e-5,
     .rope = {.theta = 150000.0},
     .sizes = {.positions = 131072},
     .spellings = kGptOssSpellings,
     .read_layers = read_gpt_oss,
     .keys = Keys(kGptOssKeys)},
    {.name = "Lfm2ForCausalLM",
     .model_type = "lfm2",
     .qk_norm = true,
     .tied_default = true,
     .eps_default = 1e-5,
     .rope = {.theta = kFar},
     .sizes = {.ffn = 12288, .positions = 128000},
     .spellings = kLfm2Spellings,
     .read_layers = read_lfm2,
     .keys = Keys(kLfm2Keys)},
    {.name = "Lfm2MoeForCausalLM",
     .model_type = "lfm2_moe",
     .qk_norm = true,
     .tied_default = true,
     .eps_default = 1e-5,
     .rope = {.theta = kFar},
     .sizes = {.ffn = 7168, .positions = 128000},
     .spellings = kLfm2MoeSpellings,
     .read_layers = read_lfm2_moe,
     .keys = Keys(kLfm2MoeKeys)},
};

// Keys of some family that change what its model computes, and the value that changes nothing: a number, or where there
// is none every value but null, false and {}.
struct OtherKey {
    std::string_view name;
    double neutral = std::numeric_limits<double>::quiet_NaN();
};
constexpr OtherKey kOtherKeys[] = {{"query_pre_attn_scalar"},
                                   {"final_logit_softcapping", 0},
                                   {"attn_logit_softcapping", 0},
                                   {"use_bidirectional_attention"},
                                   {"num_kv_shared_layers", 0},
                                   {"hidden_size_per_layer_input", 0},
                                   {"attention_k_eq_v"},
                                   {"enable_moe_block"},
                                   {"use_double_wide_mlp"},
                                   {"per_layer_config"},
                                   {"global_head_dim"},
                                   {"num_global_key_value_heads"},
                                   {"num_experts", 0},
                                   {"num_local_experts", 0},
                                   {"n_routed_experts", 0},
                                   {"moe_intermediate_size", 0},
                                   {"shared_expert_intermediate_size", 0},
                                   {"no_rope_layers"},
                                   {"no_rope_layer_interval", 0},
                                   {"embedding_multiplier", 1},
                                   {"residual_multiplier", 1},
                                   {"attention_multiplier"},
                                   {"logits_scaling", 1},
                                   {"logit_scale", 1},
                                   {"scale_emb", 1},
                                   {"scale_depth"},
                                   {"dim_model_base"},
                                   {"position_embedding_type"},
                                   {"clip_qkv"},
                                   {"attn_output_gate"},
                                   {"linear_num_value_heads", 0},
                                   {"linear_num_key_heads", 0},
                                   {"mamba_d_state", 0},
                                   {"conv_L_cache", 0},
                                   {"kv_lora_rank"},
                                   {"q_lora_rank"},
                                   {"attn_temperature_tuning", 0},
                                   {"llama_4_scaling_beta", 0},
                                   {"use_qk_norm"},
                                   {"qk_layernorm"},
                                   {"alibi"},
                                   {"attention_out_bias"},
                                   {"swiglu_limit"},
                                   {"layer_norm_eps"},
                                   {"norm_eps"},
                                   {"mlp_bias"},
                                   {"sliding_window_pattern"}};

bool is_neutral(const OtherKey& key, const JsonValue& value) {
    if (value.is_null() || (value.is_object() && value.size() == 0)) return true;
    if (value.is_bool()) return !*value.as_bool();
    return value.is_number() && *value.as_number() == key.neutral;
}

// Also one that stands in the rope object.
std::optional<JsonValue> find_key(const JsonValue& text, std::string_view key) {
    if (const auto value = text.find(key)) return value;
    for (const char* name : {"rope_parameters", "rope_scaling"}) {
        const auto rope = text.find(name);
        if (const auto value = rope && rope->is_object() ? rope->find(key) : std::nullopt) return value;
    }
    return std::nullopt;
}

bool reads(const Family& family, std::string_view key) {
    return std::ranges::find(family.keys, key) != family.keys.end() || (key == "mlp_bias" && family.mlp_bias_key);
}

std::vector<std::string_view> keys_not_read(const JsonValue& text, const Family& family) {
    std::vector<std::string_view> names;
    for (const OtherKey& key : kOtherKeys) {
        const auto value = find_key(text, key.name);
        if (value && !reads(family, key.name) && !is_neutral(key, *value)) names.push_back(key.name);
    }
    return names;
}

size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<size_t> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (size_t i = 0; i < a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < b.size(); ++j) {
            const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
            diagonal = row[j + 1];
            row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
        }
    }
    return row.back();
}

Error unknown_family(const JsonValue& root, std::string_view name) {
    constexpr size_t kNameMax = 200;
    const Family* nearest = std::ranges::min_element(
        kFamilies, {}, [&](const Family& family) { return edit_distance(family.name, name.substr(0, kNameMax)); });
    const auto inner = root.find("text_config");
    const JsonValue& text = inner && inner->is_object() ? *inner : root;
    std::string unknown;
    for (const std::string_view key : keys_not_read(text, *nearest))
        unknown += format("{}{}", unknown.empty() ? "" : ", ", key);
    return root.error(format("architecture {} is not supported; the nearest that is: {}{}{}; supported are {}",
                             json_quote_short(name), nearest->name, unknown.empty() ? "" : ", which does not have ",
                             unknown, supported_families()));
}

bool is_named(const Family& family, std::string_view name) {
    // LlamaForCausalLM, LlamaModel: the decoder alone, as embedding models are saved
    constexpr std::string_view kHead = "ForCausalLM", kBare = "Model";
    const std::string_view stem = family.name.substr(0, family.name.size() - kHead.size());
    const bool is_bare = name.starts_with(stem) && name.substr(stem.size()) == kBare;
    return family.name == name || family.model_type == name || is_bare;
}

}  // namespace

Result<const Family*> find_family(const JsonValue& root) {
    // The text part of a model that reads more says what it is itself.
    if (const auto text = root.find("text_config"); text && text->is_object()) {
        const auto type = text->find("model_type");
        if (type && type->is_string()) {
            for (const Family& family : kFamilies) {
                if (family.model_type == *type->as_string()) return &family;
            }
        }
    }
    std::string_view name;
    if (const auto list = root.find("architectures"); list && list->size() > 0) {
        TRY_ASSIGN(const auto names, list->as_array());
        TRY_ASSIGN(name, names[0].as_string());
        if (names.size() > 1) return list->error("expected one architecture, found " + list->dump());
    } else if (const auto type = root.find("model_type")) {
        TRY_ASSIGN(name, type->as_string());
    } else {
        return root.error("no architectures: is this the config.json of a language model?");
    }
    for (const Family& family : kFamilies) {
        if (is_named(family, name) ||
            (!family.wrapper.empty() && (family.wrapper == name || family.wrapper_type == name)))
            return &family;
    }
    return unknown_family(root, name);
}

std::string supported_families() {
    std::string names;
    for (const Family& family : kFamilies) names += format("{}{}", names.empty() ? "" : ", ", family.name);
    return names;
}

std::vector<FamilyKeys> families_with_keys() {
    std::vector<FamilyKeys> families;
    for (const Family& family : kFamilies) {
        if (!family.keys.empty()) families.push_back({family.name, family.keys});
    }
    return families;
}

Status check_other_keys(const JsonValue& text, const Family& family) {
    for (const std::string_view key : keys_not_read(text, family)) {
        return text.error(format("{}: {} with {}, which changes what the model computes, is not supported", key,
                                 family.name, find_key(text, key)->describe()));
    }
    return ok_status();
}

}  // namespace lorad::model
