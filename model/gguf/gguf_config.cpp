#include "model/gguf/gguf_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "model/config/config_readers.h"
#include "model/config/config_rope.h"
#include "model/files/safetensors.h"
#include "model/gguf/gguf_expected.h"
#include "model/gguf/gguf_family.h"
#include "model/gguf/gguf_fields.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/json/json.h"

namespace lorad::model {
namespace {

Error not_supported(std::string what) { return make_error(ErrorCode::kInvalidModel, std::move(what)); }

constexpr std::array<std::string_view, 11> kEncoders = {
    "bert",     "nomic-bert", "nomic-bert-moe",  "jina-bert-v2", "jina-bert-v3", "modern-bert",
    "neo-bert", "eurobert",   "gemma-embedding", "llama-embed",  "t5encoder"};

// Fields that change what the model computes, in a way that lorad does not: where they say something, the model is
// refused.
constexpr std::array<std::string_view, 18> kOtherArithmetic = {"expert_count",
                                                               "logit_scale",
                                                               "residual_scale",
                                                               "embedding_scale",
                                                               "attn_logit_softcapping",
                                                               "final_logit_softcapping",
                                                               "attention.clamp_kqv",
                                                               "attention.max_alibi_bias",
                                                               "use_parallel_residual",
                                                               "attention.temperature_scale",
                                                               "attention.temperature_length",
                                                               "nextn_predict_layers",
                                                               "attention.kv_lora_rank",
                                                               "attention.shared_kv_layers",
                                                               "rope.dimension_sections",
                                                               "attention.layer_norm_epsilon",
                                                               "deepstack_layers",
                                                               "rope.scaling.yarn_log_multiplier"};

// Fields that are read here, or need no reading.
constexpr std::array<std::string_view, 31> kKnownFields = {"vocab_size",
                                                           "context_length",
                                                           "embedding_length",
                                                           "block_count",
                                                           "feed_forward_length",
                                                           "attention.head_count",
                                                           "attention.head_count_kv",
                                                           "attention.key_length",
                                                           "attention.value_length",
                                                           "attention.layer_norm_rms_epsilon",
                                                           "attention.sliding_window",
                                                           "attention.causal",
                                                           "attention.scale",
                                                           "rope.dimension_count",
                                                           "rope.freq_base",
                                                           "rope.freq_base_swa",
                                                           "rope.scale_linear",
                                                           "rope.scaling.type",
                                                           "rope.scaling.factor",
                                                           "rope.scaling.original_context_length",
                                                           "rope.scaling.attn_factor",
                                                           "rope.scaling.finetuned",
                                                           "rope.scaling.yarn_ext_factor",
                                                           "rope.scaling.yarn_attn_factor",
                                                           "rope.scaling.yarn_beta_fast",
                                                           "rope.scaling.yarn_beta_slow",
                                                           "tensor_data_layout",
                                                           "pooling_type",
                                                           "expert_used_count",
                                                           "tokenizer.ggml.model",
                                                           "classifier.output_labels"};

Status check_other_fields(const GgufFile& file, const GgufFields& fields) {
    for (const std::string_view key : kOtherArithmetic) {
        const GgufValue* value = fields.find(key);
        if (value == nullptr || !says_something(*value)) continue;
        return not_supported(format("{} = {}: lorad does not compute that", fields.full(key), value->describe()));
    }
    const std::string prefix = fields.full("");
    for (const auto& [key, value] : file.fields) {
        if (!key.starts_with(prefix)) continue;
        const std::string_view own = std::string_view(key).substr(prefix.size());
        const bool is_known = std::ranges::find(kKnownFields, own) != kKnownFields.end() ||
                              std::ranges::find(kOtherArithmetic, own) != kOtherArithmetic.end();
        if (!is_known) log_warn("{} = {} is not read", key, value.describe());
    }
    return ok_status();
}

Status read_gguf_sizes(const GgufFile& file, const GgufFields& fields, ModelConfig& config) {
    TRY_ASSIGN(config.hidden_size, fields.size_of("embedding_length", 1u << 17));
    TRY_ASSIGN(config.intermediate_size, fields.size_of("feed_forward_length", 1u << 20));
    TRY_ASSIGN(config.n_layers, fields.size_of("block_count", 1024));
    TRY_ASSIGN(config.n_heads, fields.size_of("attention.head_count", 1024));
    TRY_ASSIGN(config.n_kv_heads, fields.size_or("attention.head_count_kv", config.n_heads, 1024));
    TRY_ASSIGN(config.max_positions, fields.size_of("context_length", 1u << 26));
    if (config.n_heads % config.n_kv_heads != 0) {
        return not_supported(format("{} {} is not a multiple of {} {}", fields.full("attention.head_count"),
                                    config.n_heads, fields.full("attention.head_count_kv"), config.n_kv_heads));
    }
    uint32_t head_dim = 0;
    if (fields.find("attention.key_length") == nullptr) {
        if (config.hidden_size % config.n_heads != 0) {
            return not_supported(format("no {}, and {} {} is not a multiple of {} {}",
                                        fields.full("attention.key_length"), fields.full("embedding_length"),
                                        config.hidden_size, fields.full("attention.head_count"), config.n_heads));
        }
        head_dim = config.hidden_size / config.n_heads;
    }
    TRY_ASSIGN(config.head_dim, fields.size_or("attention.key_length", head_dim, 1u << 16));
    TRY_ASSIGN(const uint32_t value_length, fields.size_or("attention.value_length", config.head_dim, 1u << 16));
    if (value_length != config.head_dim) {
        return not_supported(format("{}: expected {} as {}, found {}", fields.full("attention.value_length"),
                                    config.head_dim, fields.full("attention.key_length"), value_length));
    }
    if (config.head_dim % kHeadDimMultiple != 0 || config.head_dim > kHeadDimMax) {
        return not_supported(format("heads of {} numbers: expected a multiple of {} up to {}", config.head_dim,
                                    kHeadDimMultiple, kHeadDimMax));
    }
    const GgufTensor* embedding = find_gguf_tensor(file, "token_embd.weight");
    if (embedding == nullptr || embedding->shape.size() != 2 || embedding->shape[0] > kVocabMax) {
        return not_supported(format("token_embd.weight: expected a matrix of at most {} tokens, found {}", kVocabMax,
                                    embedding == nullptr ? "none" : shape_text(embedding->shape)));
    }
    config.vocab_size = static_cast<uint32_t>(embedding->shape[0]);
    if (fields.find("attention.layer_norm_rms_epsilon") == nullptr)
        return not_supported(format("{} is missing", fields.full("attention.layer_norm_rms_epsilon")));
    TRY_ASSIGN(const double eps, fields.number_or("attention.layer_norm_rms_epsilon", 0, 0.0, 1.0));
    config.rms_norm_eps = static_cast<float>(eps);
    TRY_ASSIGN(const double scale, fields.number_or("attention.scale", 0.0, 0.0, 1e6));
    if (scale != 0.0 && std::abs(scale * std::sqrt(config.head_dim) - 1.0) > 1e-3) {
        return not_supported(
            format("{} = {:g}: lorad scales by 1 / sqrt(head size)", fields.full("attention.scale"), scale));
    }
    return ok_status();
}

// Factors that divide RoPE's frequencies; empty: there is no such tensor.
Result<std::vector<double>> rope_factors(const GgufFile& file, std::string_view name, const RopeConfig& rope) {
    const GgufTensor* tensor = find_gguf_tensor(file, name);
    std::vector<double> factors;
    if (tensor == nullptr) return factors;
    if (tensor->type != GgmlType::kF32 || tensor->shape != std::vector<uint64_t>{rope.rotary_dim / 2}) {
        return not_supported(format("tensor {}: expected F32 [{}] (half the rotary size), found {} {}", name,
                                    rope.rotary_dim / 2, name_of(tensor->type), shape_text(tensor->shape)));
    }
    for (size_t i = 0; i < tensor->shape[0]; ++i) {
        const float factor = widen(DType::kF32, tensor->data.data() + i * sizeof(float));
        if (!(factor > 0.0f) || !std::isfinite(factor))
            return not_supported(format("tensor {}: number {}: expected a positive one, found {}", name, i, factor));
        factors.push_back(factor);
    }
    return factors;
}

constexpr double kHuge = 1e12;

Status read_gguf_yarn(const GgufFields& fields, ModelConfig& config) {
    RopeConfig& to = config.rope;
    TRY_ASSIGN(to.beta_fast, fields.number_or("rope.scaling.yarn_beta_fast", 32.0, 1e-6, kHuge));
    TRY_ASSIGN(to.beta_slow, fields.number_or("rope.scaling.yarn_beta_slow", 1.0, 1e-6, kHuge));
    TRY_ASSIGN(const double ramp, fields.number_or("rope.scaling.yarn_ext_factor", 1.0, 1.0, 1.0));
    (void)ramp;
    TRY_ASSIGN(const double own, fields.number_or("rope.scaling.attn_factor", 1.0, 1e-6, kHuge));
    TRY_ASSIGN(const double factor, fields.number_or("rope.scaling.yarn_attn_factor", own, 1e-6, kHuge));
    to.attention_factor = factor * (1.0 + 0.1 * std::log(std::max(to.factor, 1.0)));
    const double stretched = to.factor * to.original_max_positions;
    config.max_positions = std::max(config.max_positions, static_cast<uint32_t>(std::min(stretched, double{1u << 26})));
    return ok_status();
}

Status read_gguf_longrope(const GgufFile& file, const GgufFields& fields, ModelConfig& config) {
    RopeConfig& to = config.rope;
    to.type = RopeType::kLongRope;
    TRY_ASSIGN(to.short_factors, rope_factors(file, kRopeShort, to));
    TRY_ASSIGN(to.long_factors, rope_factors(file, kRopeLong, to));
    if (to.short_factors.empty() || to.long_factors.empty())
        return not_supported(format("tensors {} and {}: expected both, found one", kRopeShort, kRopeLong));
    const double stretch = static_cast<double>(config.max_positions) / to.original_max_positions;
    const double usual =
        stretch <= 1.0 ? 1.0
                       : std::sqrt(1.0 + std::log(stretch) / std::log(static_cast<double>(to.original_max_positions)));
    TRY_ASSIGN(to.attention_factor, fields.number_or("rope.scaling.attn_factor", usual, 1e-6, kHuge));
    return ok_status();
}

Status read_gguf_rope(const GgufFile& file, const GgufFields& fields, const GgufArchitecture& architecture,
                      ModelConfig& config) {
    RopeConfig& to = config.rope;
    TRY_ASSIGN(to.theta, fields.number_or("rope.freq_base", 10000.0, 1e-6, kHuge));
    TRY_ASSIGN(to.rotary_dim, fields.size_or("rope.dimension_count", config.head_dim, config.head_dim));
    if (to.rotary_dim % 2 != 0 || (architecture.permutes_q_and_k && to.rotary_dim != config.head_dim)) {
        return not_supported(
            format("{}: expected {}, found {}", fields.full("rope.dimension_count"),
                   architecture.permutes_q_and_k ? format("the heads' {}", config.head_dim) : "an even number",
                   to.rotary_dim));
    }
    TRY_ASSIGN(const std::string_view type, fields.text_or("rope.scaling.type", "none"));
    TRY_ASSIGN(const double linear, fields.number_or("rope.scale_linear", 1.0, 1e-6, kHuge));
    TRY_ASSIGN(to.factor, fields.number_or("rope.scaling.factor", linear, 1e-6, kHuge));
    TRY_ASSIGN(to.original_max_positions,
               fields.size_or("rope.scaling.original_context_length", config.max_positions, 1u << 26));
    if (type == "linear" || (type == "none" && to.factor != 1.0 && fields.find("rope.scaling.type") == nullptr)) {
        to.type = RopeType::kLinear;
    } else if (type == "yarn") {
        to.type = RopeType::kYarn;
        TRY(read_gguf_yarn(fields, config));
    } else if (type != "none" && type != "longrope") {
        return not_supported(format("{}: rope scaling {} is not supported; supported are none, linear, yarn, longrope",
                                    fields.full("rope.scaling.type"), json_quote_short(type)));
    }
    TRY_ASSIGN(to.frequency_factors, rope_factors(file, kRopeFreqs, to));
    const bool has_longrope =
        find_gguf_tensor(file, kRopeShort) != nullptr || find_gguf_tensor(file, kRopeLong) != nullptr;
    if (type == "longrope" && !has_longrope)
        return not_supported(format("{}: longrope, but there are no tensors {} and {}",
                                    fields.full("rope.scaling.type"), kRopeShort, kRopeLong));
    if (has_longrope) TRY(read_gguf_longrope(file, fields, config));
    return check_rope(config, fields.full("rope"));
}

// A window that no context can fill is no window. Qwen's files may repeat a number that the model does not use:
// llama.cpp reads none there either.
Status read_gguf_windows(const GgufFields& fields, ModelConfig& config) {
    config.sliding_windows.assign(config.n_layers, 0);
    const bool has_windows = config.architecture == "LlamaForCausalLM" || config.architecture == "Phi3ForCausalLM";
    const GgufValue* value = fields.find("attention.sliding_window");
    if (!has_windows || value == nullptr || value->as_integer() == 0) return ok_status();
    TRY_ASSIGN(const uint32_t window, fields.size_of("attention.sliding_window", 1u << 30));
    if (window < config.max_positions) config.sliding_windows.assign(config.n_layers, window);
    return ok_status();
}

constexpr std::string_view kGemma3 = "gemma3";

// Adds what llama.cpp knows by the architecture's name. The file's norms hold the whole weight.
Status read_gguf_gemma3(const GgufFields& fields, ModelConfig& config) {
    constexpr uint32_t kFullEvery = 6, kLayersOf27B = 62;
    TRY_ASSIGN(const uint32_t window, fields.size_or("attention.sliding_window", 0, 1u << 30));
    TRY_ASSIGN(const double theta, fields.number_or("rope.freq_base_swa", 10000.0, 1e-6, kHuge));
    std::vector<bool> full;
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) full.push_back((layer + 1) % kFullEvery == 0);
    RopeConfig sliding;
    sliding.theta = theta;
    sliding.rotary_dim = config.head_dim;
    config.more_ropes = {sliding};
    config.one_plus_norms = config.norms_hold_one = config.wide_activations = true;
    if (!config.dtype) config.dtype = DType::kBF16;
    const uint32_t scalar = config.n_layers == kLayersOf27B ? config.hidden_size / config.n_heads : config.head_dim;
    make_gemma3_layers(full, window < config.max_positions ? window : 0, 1.0f / std::sqrt(static_cast<float>(scalar)),
                       config);
    return check_rope(config, fields.full("rope"));
}

bool has_experts(const GgufFields& fields) {
    const GgufValue* count = fields.find("expert_count");
    return count != nullptr && says_something(*count);
}

// The type that the model was made in, as far as its matrices that are not quantized show it.
std::optional<DType> made_in(const GgufFile& file) {
    bool all_f32 = true, has_bf16 = false;
    for (const GgufTensor& tensor : file.tensors) {
        if (tensor.shape.size() != 2) continue;
        all_f32 = all_f32 && tensor.type == GgmlType::kF32;
        has_bf16 = has_bf16 || tensor.type == GgmlType::kBF16;
    }
    return has_bf16 ? std::optional(DType::kBF16) : all_f32 ? std::optional(DType::kF32) : std::nullopt;
}

}  // namespace

bool changes_arithmetic(std::string_view own_key) {
    return std::ranges::find(kOtherArithmetic, own_key) != kOtherArithmetic.end();
}

bool says_something(const GgufValue& value) {
    if (const auto number = value.as_number()) return *number != 0.0;
    return value.as_flag().value_or(true);
}

Result<const GgufArchitecture*> check_is_gguf_model(const GgufFile& file) {
    const std::string type = file.text("general.type");
    if (type == "adapter")
        return not_supported("a LoRA adapter in GGUF; give its base model as --model, and this file as --lora "
                             "NAME=FILE or --adapter FILE");
    const GgufValue* field = file.field("general.architecture");
    const std::string name = file.text("general.architecture");
    if (type == "mmproj" || name == "clip")
        return not_supported(
            "the part of a model that reads pictures or sound (mmproj); give the file with the language model");
    if (!type.empty() && type != "model")
        return not_supported(format("general.type: expected \"model\", found {}", json_quote_short(type)));
    if (field == nullptr)
        return not_supported("general.architecture is missing: expected the name of a model's architecture");
    if (!field->as_text())
        return gguf_field_error("general.architecture", "the name of a model's architecture", *field);
    if (std::ranges::find(kEncoders, name) != kEncoders.end())
        return not_supported(
            format("an embedding model (architecture {}), which generates no text", json_quote_short(name)));
    const GgufArchitecture* architecture = gguf_architecture(name);
    if (architecture == nullptr)
        return not_supported(
            format("architecture {} is not supported; supported are {}", json_quote_short(name), gguf_architectures()));
    const GgufFields fields(file, name);
    const GgufValue* pooling = fields.find("pooling_type");
    const GgufValue* causal = fields.find("attention.causal");
    if (pooling != nullptr && says_something(*pooling))
        return not_supported(format("an embedding model ({} = {}), which generates no text",
                                    fields.full("pooling_type"), pooling->describe()));
    if (causal != nullptr && causal->as_flag() == false)
        return not_supported(
            format("an embedding model ({} = false), which generates no text", fields.full("attention.causal")));
    return architecture;
}

Result<ModelConfig> config_from_gguf(const GgufFile& file, const GgufArchitecture& architecture) {
    const GgufFields fields(file, architecture.gguf);
    if (architecture.is_by_layer || has_experts(fields)) {
        TRY_ASSIGN(ModelConfig config, family_config_from_gguf(file, architecture));
        config.dtype = made_in(file);
        if (!config.dtype && config.wide_activations) config.dtype = DType::kBF16;
        TRY_ASSIGN(config.generation, generation_from_gguf(file, config.vocab_size));
        return config;
    }
    ModelConfig config;
    config.architecture = architecture.ours;
    config.fused_qkv = config.fused_gate_up = architecture.fused;
    TRY(check_other_fields(file, fields));
    TRY(read_gguf_sizes(file, fields, config));
    TRY(read_gguf_rope(file, fields, architecture, config));
    TRY(read_gguf_windows(fields, config));
    const auto has = [&](std::string_view name) { return find_gguf_tensor(file, name) != nullptr; };
    config.tied_embeddings = !has("output.weight");
    config.qk_norm = architecture.gguf == "qwen3" || architecture.gguf == kGemma3;
    config.qkv_bias = has("blk.0.attn_q.bias");
    config.o_bias = has("blk.0.attn_output.bias");
    config.mlp_bias = has("blk.0.ffn_down.bias");
    config.dtype = made_in(file);
    if (architecture.gguf == kGemma3) TRY(read_gguf_gemma3(fields, config));
    TRY_ASSIGN(config.generation, generation_from_gguf(file, config.vocab_size));
    return config;
}

}  // namespace lorad::model
