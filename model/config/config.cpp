#include "model/config/config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <system_error>

#include "model/config/config_families.h"
#include "model/config/config_readers.h"
#include "model/config/config_rope.h"
#include "model/files/files.h"
#include "model/files/model_folder.h"
#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::model {
namespace {

constexpr uint64_t kConfigBytesMax = uint64_t{4} << 20;

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

Status read_sizes(const JsonValue& root, const Family& family, ModelConfig& config) {
    const SizeDefaults& defaults = family.sizes;
    const auto size = [&](std::string_view key, uint32_t fallback, uint32_t max) {
        return fallback != 0 ? size_or(root, key, fallback, max) : size_of(root, key, max);
    };
    TRY_ASSIGN(config.vocab_size, size("vocab_size", defaults.vocab, kVocabMax));
    TRY_ASSIGN(config.hidden_size, size("hidden_size", defaults.hidden, 1u << 17));
    TRY_ASSIGN(config.intermediate_size, size("intermediate_size", defaults.ffn, 1u << 20));
    TRY_ASSIGN(config.n_layers, size("num_hidden_layers", defaults.layers, 1024));
    TRY_ASSIGN(config.n_heads, size("num_attention_heads", defaults.heads, 1024));
    TRY_ASSIGN(config.n_kv_heads, size("num_key_value_heads",
                                       family.kv_heads_default_to_heads ? config.n_heads : defaults.kv_heads, 1024));
    TRY_ASSIGN(config.max_positions, size("max_position_embeddings", defaults.positions, 1u << 26));
    uint32_t head_dim = family.head_dim_default;
    if (!root.find("head_dim") && head_dim == 0) {
        if (config.hidden_size % config.n_heads != 0) {
            return root.error(format("no head_dim, and hidden_size {} is not a multiple of num_attention_heads {}",
                                     config.hidden_size, config.n_heads));
        }
        head_dim = config.hidden_size / config.n_heads;
    }
    TRY_ASSIGN(config.head_dim, size_or(root, "head_dim", head_dim, kHeadDimMax));
    if (const std::string wrong = head_size_error(config.n_heads, config.n_kv_heads, config.head_dim); !wrong.empty())
        return root.error(wrong);
    TRY_ASSIGN(const double eps, root.number_or("rms_norm_eps", family.eps_default));
    if (!(eps >= 0.0 && eps < 1.0)) return root.error(format("rms_norm_eps: expected 0 to 1, found {}", eps));
    config.rms_norm_eps = static_cast<float>(eps);
    return ok_status();
}

// transformers' key since version 5, and before. What is no weight type counts as nothing: tensors say their own types.
std::optional<DType> read_dtype(const JsonValue& root) {
    constexpr std::pair<std::string_view, DType> kNames[] = {
        {"float32", DType::kF32}, {"float16", DType::kF16}, {"bfloat16", DType::kBF16}};
    for (const char* key : {"dtype", "torch_dtype"}) {
        const auto value = root.find(key);
        if (!value || !value->is_string()) continue;
        for (const auto& [name, dtype] : kNames) {
            if (*value->as_string() == name || *value->as_string() == std::string("torch.") + std::string(name))
                return dtype;
        }
    }
    return std::nullopt;
}

// Gemma's classes read hidden_activation and pass over a hidden_act beside it.
Status check_activation(const JsonValue& text, const Family& facts) {
    for (const char* key : {"hidden_activation", "hidden_act"}) {
        const auto act = text.find(key);
        if (!act) continue;
        TRY_ASSIGN(const auto name, act->as_string());
        // gelu: as files of Gemma's first call it under the older key
        const bool is_gelu = name == "gelu_pytorch_tanh" || (name == "gelu" && key == std::string_view("hidden_act"));
        const bool is_silu = name == "silu" || name == "swish";
        if (facts.gelu ? !is_gelu : !is_silu) {
            return act->error(format("expected {}, the activation of {} that is supported, found {}",
                                     facts.gelu ? "gelu_pytorch_tanh" : "silu", facts.name, act->describe()));
        }
        if (facts.gelu) break;
    }
    return ok_status();
}

// `text` is the text part, which is all of it in a model of text; what it does not say the whole may.
Status read_switches(const JsonValue& root, const JsonValue& text, const Family& facts, ModelConfig& config) {
    TRY(check_activation(text, facts));
    TRY_ASSIGN(config.quantization, read_quantization(root));
    config.dtype = read_dtype(text);
    if (!config.dtype) config.dtype = read_dtype(root);
    TRY_ASSIGN(const bool tied_as_whole, root.bool_or("tie_word_embeddings", facts.tied_default));
    TRY_ASSIGN(config.tied_embeddings, text.bool_or("tie_word_embeddings", tied_as_whole));
    if (facts.attention_bias == Biases::kAsConfigured) {
        TRY_ASSIGN(config.qkv_bias, text.bool_or("attention_bias", facts.bias_default));
        config.o_bias = config.qkv_bias;
    } else {
        config.qkv_bias = facts.attention_bias == Biases::kQkv;
    }
    if (facts.mlp_bias_key) {
        TRY_ASSIGN(config.mlp_bias, text.bool_or("mlp_bias", false));
    }
    config.qk_norm = facts.qk_norm;
    config.fused_qkv = config.fused_gate_up = facts.fused;
    config.one_plus_norms = facts.one_plus_norms;
    config.wide_activations = facts.wide_activations;
    config.spellings = facts.spellings;
    return ok_status();
}

// Fills sliding_windows. A window that no context can fill is no window.
Status read_windows(const JsonValue& root, const Family& facts, ModelConfig& config) {
    config.sliding_windows.assign(config.n_layers, 0);
    if (facts.window == Window::kNone || facts.window == Window::kByReader) return ok_status();
    TRY_ASSIGN(uint32_t window,
               size_or(root, "sliding_window", root.has("sliding_window") ? 0 : facts.window_default, 1u << 30));
    if (facts.window == Window::kUpperLayers) {
        TRY_ASSIGN(const bool is_used, root.bool_or("use_sliding_window", false));
        if (!is_used) window = 0;
    }
    if (window == 0 || window >= config.max_positions) return ok_status();

    if (const auto types = root.find("layer_types")) {
        TRY_ASSIGN(const auto names, types->as_array());
        if (names.size() != config.n_layers) {
            return types->error(
                format("expected {} entries (num_hidden_layers), found {}", config.n_layers, names.size()));
        }
        for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
            TRY_ASSIGN(const auto name, names[layer].as_string());
            if (name != "sliding_attention" && name != "full_attention") {
                return names[layer].error("expected full_attention or sliding_attention, found " +
                                          names[layer].describe());
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
    if (!(number >= min && number <= max))
        return root.error(format("{}: expected {} to {}, found {}", key, min, max, number));
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
    return {.name = std::string(name),
            .code = ErrorCode::kInvalidModel,
            .max_bytes = kConfigBytesMax,
            .allow_duplicate_keys = true};
}

}  // namespace

std::string supported_architectures() { return supported_families(); }

Result<ModelConfig> parse_model_config(std::string_view config_text, std::string_view generation_text) {
    TRY_ASSIGN(const JsonDocument document, parse_json(config_text, parse_options("config.json")));
    const JsonValue root = document.root();
    if (!root.is_object()) return root.error("expected an object, found " + root.describe());
    TRY_ASSIGN(const Family* family, find_family(root));
    const auto inner = root.find("text_config");
    if (inner && !inner->is_object()) return inner->error("expected an object, found " + inner->describe());
    const JsonValue text = inner ? *inner : root;
    TRY(check_other_keys(text, *family));
    ModelConfig config;
    config.architecture = family->name;
    TRY(read_sizes(text, *family, config));
    TRY(read_switches(root, text, *family, config));
    // Families with several tables read them with their layers.
    if (family->window != Window::kByReader) {
        TRY_ASSIGN(config.rope, read_rope(text, config.head_dim, config.max_positions, family->rope));
    }
    TRY(read_windows(text, *family, config));
    if (family->read_layers != nullptr) TRY(family->read_layers(text, *family, config));
    if (config.rope.type == RopeType::kYarn) {
        // max_position_embeddings is what the model was trained on before the scaling stretched it.
        const double stretched = config.rope.factor * config.rope.original_max_positions;
        config.max_positions =
            std::max(config.max_positions, static_cast<uint32_t>(std::min(stretched, double{1u << 26})));
    }
    TRY(check_rope(config, "config.json"));
    TRY(read_eos(root, config.generation.eos_token_ids));
    if (inner) TRY(read_eos(text, config.generation.eos_token_ids));
    if (!generation_text.empty()) {
        TRY_ASSIGN(const JsonDocument generation, parse_json(generation_text, parse_options("generation_config.json")));
        TRY(read_generation(generation.root(), config.generation));
    }
    return config;
}

namespace {

// Reads the file that a quantizer wrote beside a config.json without a quantization_config.
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
    TRY_ASSIGN(const std::string config_text,
               read_text_file(folder / "config.json", kConfigBytesMax, ErrorCode::kInvalidModel));
    std::string generation_text;
    const auto generation_file = folder / "generation_config.json";
    if (std::filesystem::exists(generation_file, ignored)) {
        TRY_ASSIGN(generation_text, read_text_file(generation_file, kConfigBytesMax, ErrorCode::kInvalidModel));
    }
    auto config = parse_model_config(config_text, generation_text);
    if (config.ok() && !config->quantization) {
        auto quantization = read_quantizer_file(folder);
        if (!quantization.ok())
            config = quantization.error();
        else
            config->quantization = std::move(quantization).value();
    }
    if (!config.ok()) return make_error(config.error().code, format("{}: {}", folder.string(), config.error().message));
    return config;
}

}  // namespace lorad::model
