#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <system_error>

#include "model/config_rope.h"
#include "model/files.h"
#include "model/model_folder.h"
#include "proto/base/format.h"
#include "proto/json.h"

namespace lorad::model {
namespace {

constexpr uint64_t kConfigBytesMax = uint64_t{4} << 20;

enum class Biases : uint8_t { kNone, kQkv, kAsConfigured };         // kAsConfigured: attention_bias, on q, k, v and o
enum class Window : uint8_t { kNone, kAllLayers, kUpperLayers };  // kUpperLayers: use_sliding_window, max_window_layers

// What an architecture's code does that its config.json does not say, and the defaults for keys that may be left out.
struct ArchitectureFacts {
    std::string_view name;
    std::string_view model_type;
    Biases attention_bias = Biases::kNone;
    bool mlp_bias_key = false;  // mlp_bias is a key of it
    bool qk_norm = false;
    bool fused = false;  // qkv_proj and gate_up_proj
    Window window = Window::kNone;
    bool kv_heads_default_to_heads = false;  // else num_key_value_heads must be there
    uint32_t head_dim_default = 0;           // 0: hidden_size / num_attention_heads
    uint32_t window_default = 0;              // where sliding_window is absent; null is none
    uint32_t original_positions_default = 0;  // of original_max_position_embeddings
    double eps_default = 1e-6;
};
constexpr ArchitectureFacts kArchitectures[] = {
    {.name = "LlamaForCausalLM", .model_type = "llama", .attention_bias = Biases::kAsConfigured, .mlp_bias_key = true,
     .kv_heads_default_to_heads = true},
    {.name = "MistralForCausalLM", .model_type = "mistral", .window = Window::kAllLayers, .window_default = 4096},
    {.name = "Qwen2ForCausalLM", .model_type = "qwen2", .attention_bias = Biases::kQkv, .window = Window::kUpperLayers,
     .window_default = 4096},
    {.name = "Qwen3ForCausalLM", .model_type = "qwen3", .attention_bias = Biases::kAsConfigured, .qk_norm = true,
     .window = Window::kUpperLayers, .head_dim_default = 128, .window_default = 4096},
    {.name = "Phi3ForCausalLM", .model_type = "phi3", .fused = true, .window = Window::kAllLayers,
     .kv_heads_default_to_heads = true, .original_positions_default = 4096, .eps_default = 1e-5},
};

Result<const ArchitectureFacts*> find_architecture(const JsonValue& root) {
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
    for (const auto& facts : kArchitectures) {
        constexpr std::string_view kHead = "ForCausalLM", kBare = "Model";  // LlamaForCausalLM, LlamaModel: the decoder alone, as embedding models are saved
        const std::string_view family = facts.name.substr(0, facts.name.size() - kHead.size());
        const bool is_bare = name.starts_with(family) && name.substr(family.size()) == kBare;
        if (facts.name == name || facts.model_type == name || is_bare) return &facts;
    }
    return root.error(format("architecture {} is not supported; supported are {}", json_quote(name), supported_architectures()));
}

Result<uint32_t> size_of(const JsonValue& root, std::string_view key, uint32_t max) {
    TRY_ASSIGN(const auto value, root.require(key));
    TRY_ASSIGN(const int64_t size, value.as_int(1, max));
    return static_cast<uint32_t>(size);
}

// Null and absent alike: the fallback.
Result<uint32_t> size_or(const JsonValue& root, std::string_view key, uint32_t fallback, uint32_t max) {
    if (!root.find(key)) return fallback;
    return size_of(root, key, max);
}

Status read_sizes(const JsonValue& root, const ArchitectureFacts& facts, ModelConfig& config) {
    TRY_ASSIGN(config.vocab_size, size_of(root, "vocab_size", kVocabMax));
    TRY_ASSIGN(config.hidden_size, size_of(root, "hidden_size", 1u << 17));
    TRY_ASSIGN(config.intermediate_size, size_of(root, "intermediate_size", 1u << 20));
    TRY_ASSIGN(config.n_layers, size_of(root, "num_hidden_layers", 1024));
    TRY_ASSIGN(config.n_heads, size_of(root, "num_attention_heads", 1024));
    TRY_ASSIGN(config.n_kv_heads, facts.kv_heads_default_to_heads
                                      ? size_or(root, "num_key_value_heads", config.n_heads, 1024)
                                      : size_of(root, "num_key_value_heads", 1024));
    TRY_ASSIGN(config.max_positions, size_of(root, "max_position_embeddings", 1u << 26));
    if (config.n_heads % config.n_kv_heads != 0) {
        return root.error(format("num_attention_heads {} is not a multiple of num_key_value_heads {}", config.n_heads,
                                 config.n_kv_heads));
    }
    uint32_t head_dim = facts.head_dim_default;
    if (!root.find("head_dim") && head_dim == 0) {
        if (config.hidden_size % config.n_heads != 0) {
            return root.error(format("no head_dim, and hidden_size {} is not a multiple of num_attention_heads {}",
                                     config.hidden_size, config.n_heads));
        }
        head_dim = config.hidden_size / config.n_heads;
    }
    TRY_ASSIGN(config.head_dim, size_or(root, "head_dim", head_dim, kHeadDimMax));
    if (config.head_dim % kHeadDimMultiple != 0 || config.head_dim > kHeadDimMax) {
        return root.error(format("head_dim: expected a multiple of {} up to {}, found {}", kHeadDimMultiple, kHeadDimMax,
                                 config.head_dim));
    }
    TRY_ASSIGN(const double eps, root.number_or("rms_norm_eps", facts.eps_default));
    if (!(eps >= 0.0 && eps < 1.0)) return root.error(format("rms_norm_eps: expected 0 to 1, found {}", eps));
    config.rms_norm_eps = static_cast<float>(eps);
    return ok_status();
}

// transformers' key since version 5, and before. What is no weight type counts as nothing: tensors say their own types.
std::optional<DType> read_dtype(const JsonValue& root) {
    constexpr std::pair<std::string_view, DType> kNames[] = {{"float32", DType::kF32}, {"float16", DType::kF16}, {"bfloat16", DType::kBF16}};
    for (const char* key : {"dtype", "torch_dtype"}) {
        const auto value = root.find(key);
        if (!value || !value->is_string()) continue;
        for (const auto& [name, dtype] : kNames) {
            if (*value->as_string() == name || *value->as_string() == std::string("torch.") + std::string(name)) return dtype;
        }
    }
    return std::nullopt;
}

Status read_switches(const JsonValue& root, const ArchitectureFacts& facts, ModelConfig& config) {
    if (const auto act = root.find("hidden_act")) {
        TRY_ASSIGN(const auto name, act->as_string());
        if (name != "silu" && name != "swish") return act->error("expected silu, the one activation supported here, found " + act->describe());
    }
    TRY_ASSIGN(config.quantization, read_quantization(root));
    config.dtype = read_dtype(root);
    TRY_ASSIGN(config.tied_embeddings, root.bool_or("tie_word_embeddings", false));
    if (facts.attention_bias == Biases::kAsConfigured) {
        TRY_ASSIGN(config.qkv_bias, root.bool_or("attention_bias", false));
        config.o_bias = config.qkv_bias;
    } else {
        config.qkv_bias = facts.attention_bias == Biases::kQkv;
    }
    if (facts.mlp_bias_key) {
        TRY_ASSIGN(config.mlp_bias, root.bool_or("mlp_bias", false));
    }
    config.qk_norm = facts.qk_norm;
    config.fused_qkv = config.fused_gate_up = facts.fused;
    return ok_status();
}

// Fills sliding_windows. A window that no context can fill is no window.
Status read_windows(const JsonValue& root, const ArchitectureFacts& facts, ModelConfig& config) {
    config.sliding_windows.assign(config.n_layers, 0);
    if (facts.window == Window::kNone) return ok_status();
    TRY_ASSIGN(uint32_t window, size_or(root, "sliding_window", root.has("sliding_window") ? 0 : facts.window_default, 1u << 30));
    if (facts.window == Window::kUpperLayers) {
        TRY_ASSIGN(const bool is_used, root.bool_or("use_sliding_window", false));
        if (!is_used) window = 0;
    }
    if (window == 0 || window >= config.max_positions) return ok_status();

    if (const auto types = root.find("layer_types")) {
        TRY_ASSIGN(const auto names, types->as_array());
        if (names.size() != config.n_layers) {
            return types->error(format("expected {} entries (num_hidden_layers), found {}", config.n_layers, names.size()));
        }
        for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
            TRY_ASSIGN(const auto name, names[layer].as_string());
            if (name != "sliding_attention" && name != "full_attention") {
                return names[layer].error("expected full_attention or sliding_attention, found " + names[layer].describe());
            }
            if (name == "sliding_attention") config.sliding_windows[layer] = window;
        }
        return ok_status();
    }
    uint32_t first = 0;
    if (facts.window == Window::kUpperLayers) {
        TRY_ASSIGN(const int64_t max_window_layers, root.int_or("max_window_layers", 28, 0, 1u << 20));
        first = std::min(static_cast<uint32_t>(max_window_layers), config.n_layers);
    }
    std::fill(config.sliding_windows.begin() + first, config.sliding_windows.end(), window);
    return ok_status();
}

// A token id or a list of them; null: none.
Status read_eos(const JsonValue& root, std::vector<TokenId>& ids) {
    const auto value = root.find("eos_token_id");
    if (!value) return ok_status();
    std::vector<JsonValue> values{*value};
    if (value->is_array()) {
        TRY_ASSIGN(values, value->as_array());
    }
    ids.clear();
    for (const auto& one : values) {
        TRY_ASSIGN(const int64_t id, one.as_int(0, INT32_MAX));
        ids.push_back(static_cast<TokenId>(id));
    }
    return ok_status();
}

Status read_ratio(const JsonValue& root, std::string_view key, double min, double max, float& to) {
    TRY_ASSIGN(const double number, root.number_or(key, to));
    if (!(number >= min && number <= max)) return root.error(format("{}: expected {} to {}, found {}", key, min, max, number));
    to = static_cast<float>(number);
    return ok_status();
}

Status read_generation(const JsonValue& root, GenerationDefaults& generation) {
    if (!root.is_object()) return root.error("expected an object, found " + root.describe());
    TRY(read_eos(root, generation.eos_token_ids));
    TRY(read_ratio(root, "temperature", 0.0, 100.0, generation.temperature));
    TRY(read_ratio(root, "top_p", 0.0, 1.0, generation.top_p));
    TRY(read_ratio(root, "min_p", 0.0, 1.0, generation.min_p));
    TRY(read_ratio(root, "repetition_penalty", 0.01, 10.0, generation.repetition_penalty));
    if (generation.top_p == 0.0f) generation.top_p = 1e-6f;  // the most probable token alone, as 0 is meant
    TRY_ASSIGN(const int64_t top_k, root.int_or("top_k", 0, -1, INT32_MAX));
    generation.top_k = top_k < 0 ? 0 : static_cast<uint32_t>(top_k);
    return ok_status();
}

JsonParseOptions parse_options(std::string_view name) {
    // Python writes and reads such files; where a key occurs twice it takes the last.
    return {.name = std::string(name), .code = ErrorCode::kInvalidModel, .max_bytes = kConfigBytesMax,
            .allow_duplicate_keys = true};
}

}  // namespace

std::string_view name_of(LinearModule module) {
    static constexpr std::string_view kNames[kLinearModules] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                                "gate_proj", "up_proj", "down_proj"};
    return kNames[static_cast<size_t>(module)];
}

LinearShape ModelConfig::shape(LinearModule module) const {
    switch (module) {
        case LinearModule::kQ: return {q_size(), hidden_size};
        case LinearModule::kK:
        case LinearModule::kV: return {kv_size(), hidden_size};
        case LinearModule::kO: return {hidden_size, q_size()};
        case LinearModule::kGate:
        case LinearModule::kUp: return {intermediate_size, hidden_size};
        case LinearModule::kDown: return {hidden_size, intermediate_size};
    }
    CHECK(false);
}

std::string supported_architectures() {
    std::string names;
    for (const auto& facts : kArchitectures) names += format("{}{}", names.empty() ? "" : ", ", facts.name);
    return names;
}

Result<ModelConfig> parse_model_config(std::string_view config_text, std::string_view generation_text) {
    TRY_ASSIGN(const JsonDocument document, parse_json(config_text, parse_options("config.json")));
    const JsonValue root = document.root();
    if (!root.is_object()) return root.error("expected an object, found " + root.describe());
    TRY_ASSIGN(const ArchitectureFacts* facts, find_architecture(root));
    ModelConfig config;
    config.architecture = facts->name;
    TRY(read_sizes(root, *facts, config));
    TRY(read_switches(root, *facts, config));
    TRY_ASSIGN(config.rope, read_rope(root, config.head_dim, config.max_positions, facts->original_positions_default));
    if (config.rope.type == RopeType::kYarn) {
        // max_position_embeddings is what the model was trained on before the scaling stretched it.
        const double stretched = config.rope.factor * config.rope.original_max_positions;
        config.max_positions = std::max(config.max_positions, static_cast<uint32_t>(std::min(stretched, double{1u << 26})));
    }
    TRY(check_rope(config, "config.json"));
    TRY(read_windows(root, *facts, config));
    TRY(read_eos(root, config.generation.eos_token_ids));
    if (!generation_text.empty()) {
        TRY_ASSIGN(const JsonDocument generation, parse_json(generation_text, parse_options("generation_config.json")));
        TRY(read_generation(generation.root(), config.generation));
    }
    return config;
}

namespace {

// What a quantizer wrote beside a config.json that says nothing of it.
Result<QuantizationConfig> read_quantizer_file(const std::filesystem::path& folder) {
    std::error_code ignored;
    for (const std::string_view name : kQuantizerFileNames) {
        if (!std::filesystem::exists(folder / name, ignored)) continue;
        TRY_ASSIGN(const std::string text, read_text_file(folder / name, kConfigBytesMax, ErrorCode::kInvalidModel));
        return parse_quantizer_file(name, text);
    }
    return QuantizationConfig();
}

}  // namespace

Result<ModelConfig> load_model_config(const std::filesystem::path& folder) {
    TRY(check_model_folder(folder));
    std::error_code ignored;
    TRY_ASSIGN(const std::string config_text, read_text_file(folder / "config.json", kConfigBytesMax, ErrorCode::kInvalidModel));
    std::string generation_text;
    const auto generation_file = folder / "generation_config.json";
    if (std::filesystem::exists(generation_file, ignored)) {
        TRY_ASSIGN(generation_text, read_text_file(generation_file, kConfigBytesMax, ErrorCode::kInvalidModel));
    }
    auto config = parse_model_config(config_text, generation_text);
    if (config.ok() && !config->quantization) {
        auto quantization = read_quantizer_file(folder);
        if (!quantization.ok()) config = quantization.error();
        else config->quantization = std::move(quantization).value();
    }
    if (!config.ok()) return make_error(config.error().code, format("{}: {}", folder.string(), config.error().message));
    return config;
}

}  // namespace lorad::model
