#include "model/gguf/gguf_family.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "model/gguf/gguf_config.h"
#include "model/gguf/gguf_fields.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/json/json.h"

namespace lorad::model {
namespace {

constexpr uint32_t kFieldMax = 1u << 26, kLayersMax = 1024;
constexpr double kFieldNumberMax = 1e12;

Error not_said(std::string what) { return make_error(ErrorCode::kInvalidModel, std::move(what)); }

// Fields that need no reading: what they say is known, or changes nothing.
constexpr std::array<std::string_view, 19> kNeedNone = {"vocab_size",
                                                        "attention.value_length",
                                                        "attention.value_length_swa",
                                                        "attention.causal",
                                                        "rope.dimension_sections",
                                                        "rope.scaling.finetuned",
                                                        "rope.scaling.yarn_ext_factor",
                                                        "tensor_data_layout",
                                                        "pooling_type",
                                                        "rope.dimension_count_swa",
                                                        "ssm.inner_size",
                                                        "expert_group_count",
                                                        "expert_group_used_count",
                                                        "expert_weights_norm",
                                                        "expert_gating_func",
                                                        "rope.scaling.yarn_log_multiplier",
                                                        "attention.layer_norm_epsilon",
                                                        "full_attention_interval",
                                                        "nextn_predict_layers"};

// One file's fields and tensors, said as a config.json.
class FamilyConfig {
  public:
    FamilyConfig(const GgufFile& file, const GgufArchitecture& architecture)
        : file_(file), architecture_(architecture), fields_(file, architecture.gguf) {}

    Result<ModelConfig> read() {
        TRY(say_common());
        TRY(say_own());
        ours_ = ours_.empty() ? architecture_.ours : ours_;
        json_.key("architectures").begin_array().value(ours_).end_array();
        TRY(check_others());
        Result<ModelConfig> config = parse_model_config(json_.end_object().take(), {});
        if (!config.ok())
            return not_said(format("the file's fields, said as a config.json: {}", config.error().message));
        config->norms_hold_one = true;
        config->fused_delta = false;
        config->fused_gate_up = config->fused_qkv = false;
        if (const GgufTensor* factors = tensor(kRopeFreqs); factors != nullptr && architecture_.gguf != "gemma4") {
            return not_said(format("tensor {}: {} has no such factors", kRopeFreqs, architecture_.gguf));
        }
        return config;
    }

  private:
    const GgufTensor* tensor(std::string_view name) const {
        const auto found = std::ranges::find(file_.tensors, name, &GgufTensor::name);
        return found == file_.tensors.end() ? nullptr : &*found;
    }
    bool has(std::string_view name) const { return tensor(name) != nullptr; }
    const GgufValue* find(std::string_view key) {
        read_.insert(std::string(key));
        return fields_.find(key);
    }
    Result<uint32_t> size_of(std::string_view key, uint32_t max = kFieldMax) {
        (void)find(key);
        return fields_.size_of(key, max);
    }
    Result<uint32_t> size_or(std::string_view key, uint32_t fallback, uint32_t max = kFieldMax) {
        const GgufValue* value = find(key);
        if (value == nullptr || value->as_integer() == 0) return value == nullptr ? fallback : 0u;
        return fields_.size_of(key, max);
    }
    Result<double> number_or(std::string_view key, double fallback) {
        (void)find(key);
        return fields_.number_or(key, fallback, -kFieldNumberMax, kFieldNumberMax);
    }
    // One for each layer, also where the file says one for all.
    Result<std::vector<uint32_t>> by_layer(std::string_view key, uint32_t max) {
        const GgufValue* value = find(key);
        if (value == nullptr) return not_said(format("{} is missing", fields_.full(key)));
        std::vector<int64_t> list(n_layers_, value->as_integer().value_or(-1));
        if (const auto all = value->as_integers()) {
            if (all->size() < n_layers_)
                return gguf_field_error(fields_.full(key), format("{} numbers, one for each layer", n_layers_), *value);
            list.assign(all->begin(), all->begin() + n_layers_);
        }
        std::vector<uint32_t> sizes;
        for (const int64_t size : list) {
            if (size < 0 || size > int64_t{max})
                return gguf_field_error(fields_.full(key), format("0 to {}", max), *value);
            sizes.push_back(static_cast<uint32_t>(size));
        }
        return sizes;
    }

    Status say_common() {
        TRY_ASSIGN(const uint32_t n_blocks, size_of("block_count", kLayersMax));
        n_layers_ = n_blocks - std::min(n_drafting_layers(file_, architecture_), n_blocks - 1);
        const GgufTensor* embedding = tensor("token_embd.weight");
        if (embedding == nullptr || embedding->shape.size() != 2)
            return not_said("token_embd.weight: expected a matrix, found none");
        TRY_ASSIGN(hidden_, size_of("embedding_length", 1u << 17));
        TRY_ASSIGN(n_heads_, size_of("attention.head_count", 1024));
        TRY_ASSIGN(const std::vector<uint32_t> kv,
                   find("attention.head_count_kv")
                       ? by_layer("attention.head_count_kv", 1024)
                       : Result<std::vector<uint32_t>>(std::vector<uint32_t>(n_layers_, n_heads_)));
        kv_heads_ = kv;
        TRY_ASSIGN(head_dim_, size_or("attention.key_length", hidden_ / n_heads_, 1u << 16));
        TRY_ASSIGN(const std::vector<uint32_t> ffn, by_layer("feed_forward_length", 1u << 20));
        ffn_ = ffn;
        TRY_ASSIGN(positions_, size_of("context_length"));
        TRY_ASSIGN(const double eps, number_or("attention.layer_norm_rms_epsilon", 1e-6));
        json_.begin_object()
            .field("vocab_size", embedding->shape[0])
            .field("hidden_size", hidden_)
            .field("num_hidden_layers", n_layers_);
        json_.field("num_attention_heads", n_heads_).field("max_position_embeddings", positions_);
        json_.field(architecture_.gguf.starts_with("lfm2") ? "norm_eps" : "rms_norm_eps", eps)
            .field("tie_word_embeddings", !has("output.weight"));
        if (architecture_.gguf != "gemma4")
            json_.field("intermediate_size", ffn_.front())
                .field("head_dim", head_dim_)
                .field("num_key_value_heads", *std::ranges::max_element(kv_heads_));
        if (has("blk.0.attn_q.bias") || has("blk.0.attn_output.bias")) json_.field("attention_bias", true);
        if (has("blk.0.ffn_down.bias")) json_.field("mlp_bias", true);
        return ok_status();
    }

    Status say_own() {
        const std::string_view name = architecture_.gguf;
        if (name == "gemma2") return say_gemma2();
        if (name == "gemma4") return say_gemma4();
        if (name == "smollm3") json_.field("no_rope_layer_interval", 4);
        if (name == "olmo2") return say_olmo2();
        if (name == "granite" || name == "granitehybrid") TRY(say_granite());
        if (name == "granitehybrid") TRY(say_mamba());
        if (name == "mistral3") return say_ministral3();
        if (name == "qwen35" || name == "qwen35moe" || name == "qwen3next") TRY(say_delta());
        if (name == "qwen35moe" || name == "qwen3next" || name == "qwen3moe") TRY(say_experts("num_experts"));
        if (name == "llama") TRY(say_mixtral());
        if (name == "gpt-oss") TRY(say_gpt_oss());
        if (name == "lfm2" || name == "lfm2moe") TRY(say_lfm2());
        return say_rope();
    }

    // Writes the rotary keys of all layers, or of those without a window.
    Status write_rope(std::string_view default_type = {}) {
        TRY_ASSIGN(const double theta, number_or("rope.freq_base", 10000.0));
        TRY_ASSIGN(const uint32_t turned, size_or("rope.dimension_count", head_dim_));
        (void)find("rope.scaling.type");
        TRY_ASSIGN(const std::string_view type, fields_.text_or("rope.scaling.type", "none"));
        TRY_ASSIGN(const double factor, number_or("rope.scaling.factor", 1.0));
        TRY_ASSIGN(const uint32_t original, size_or("rope.scaling.original_context_length", 0));
        json_.begin_object().field("rope_theta", theta);
        if (default_type.empty() && turned != head_dim_)
            json_.field("partial_rotary_factor", static_cast<double>(turned) / head_dim_);
        if (type == "linear" || type == "yarn") {
            json_.field("rope_type", type).field("factor", factor);
            if (original != 0) json_.field("original_max_position_embeddings", original);
        } else if (type != "none") {
            return not_said(format("{}: rope scaling {} is not supported here; supported are none, linear, yarn",
                                   fields_.full("rope.scaling.type"), json_quote_short(type)));
        }
        if (type != "yarn") return ok_status();
        TRY_ASSIGN(const double fast, number_or("rope.scaling.yarn_beta_fast", 32.0));
        TRY_ASSIGN(const double slow, number_or("rope.scaling.yarn_beta_slow", 1.0));
        json_.field("beta_fast", fast).field("beta_slow", slow);
        if (const GgufValue* own = find("rope.scaling.attn_factor")) {
            // llama.cpp multiplies what the factor alone would give by it.
            json_.field("attention_factor",
                        own->as_number().value_or(1.0) * (1.0 + 0.1 * std::log(std::max(factor, 1.0))));
        }
        return ok_status();
    }
    Status say_rope() {
        json_.key("rope_parameters");
        TRY(write_rope());
        if (architecture_.gguf == "gpt-oss") json_.field("truncate", false);
        json_.end_object();
        return ok_status();
    }

    Status say_softcaps(double of_scores, double of_logits) {
        TRY_ASSIGN(const double scores, number_or("attn_logit_softcapping", of_scores));
        TRY_ASSIGN(const double logits, number_or("final_logit_softcapping", of_logits));
        json_.field("attn_logit_softcapping", scores).field("final_logit_softcapping", logits);
        return ok_status();
    }
    void say_windows(const std::vector<bool>& has_window) {
        json_.key("layer_types").begin_array();
        for (const bool one : has_window) json_.value(one ? "sliding_attention" : "full_attention");
        json_.end_array();
    }
    // True for layers with a window, by the file, else by the family's own pattern: all but each nth.
    Result<std::vector<bool>> windows_of(uint32_t every) {
        std::vector<bool> has_window;
        for (uint32_t layer = 0; layer < n_layers_; ++layer) has_window.push_back((layer + 1) % every != 0);
        const GgufValue* pattern = find("attention.sliding_window_pattern");
        if (pattern == nullptr) return has_window;
        if (const auto n = pattern->as_integer(); n && *n > 0) {
            for (uint32_t layer = 0; layer < n_layers_; ++layer)
                has_window[layer] = (layer + 1) % static_cast<uint64_t>(*n) != 0;
            return has_window;
        }
        const auto flags = pattern->as_flags();
        if (!flags || flags->size() < n_layers_)
            return gguf_field_error(fields_.full("attention.sliding_window_pattern"),
                                    format("{} flags, one for each layer", n_layers_), *pattern);
        has_window.assign(flags->begin(), flags->begin() + n_layers_);
        return has_window;
    }

    Status say_gemma2() {
        constexpr uint32_t kLayersOf27B = 46;
        TRY(say_softcaps(50.0, 30.0));
        TRY_ASSIGN(const uint32_t window, size_or("attention.sliding_window", 4096));
        TRY_ASSIGN(const std::vector<bool> windows, windows_of(2));
        json_.field("sliding_window", window)
            .field("query_pre_attn_scalar", n_layers_ == kLayersOf27B ? hidden_ / n_heads_ : head_dim_);
        say_windows(windows);
        return say_rope();
    }

    Status say_gemma4() {
        TRY_ASSIGN(const double softcap, number_or("final_logit_softcapping", 0.0));
        TRY_ASSIGN(const std::vector<bool> windows, windows_of(6));
        TRY_ASSIGN(const uint32_t window, size_or("attention.sliding_window", 0));
        TRY_ASSIGN(const uint32_t sliding_dim, size_or("attention.key_length_swa", head_dim_, 1u << 16));
        TRY_ASSIGN(const uint32_t n_shared, size_or("attention.shared_kv_layers", 0, n_layers_));
        TRY_ASSIGN(const uint32_t per_layer, size_or("embedding_length_per_layer_input", 0));
        TRY_ASSIGN(const uint32_t n_experts, size_or("expert_count", 0));
        TRY_ASSIGN(const uint32_t n_used, size_or("expert_used_count", 0));
        TRY_ASSIGN(const uint32_t expert_size, size_or("expert_feed_forward_length", 0));
        uint32_t sliding_kv = kv_heads_.front(), full_kv = kv_heads_.front();
        bool k_is_v = false;
        for (uint32_t layer = 0; layer < n_layers_; ++layer) {
            (windows[layer] ? sliding_kv : full_kv) = kv_heads_[layer];
            k_is_v = k_is_v ||
                     (!windows[layer] && layer < n_layers_ - n_shared && !has(format("blk.{}.attn_v.weight", layer)));
        }
        json_.field("final_logit_softcapping", softcap)
            .field("sliding_window", window)
            .field("head_dim", sliding_dim)
            .field("global_head_dim", head_dim_);
        json_.field("num_key_value_heads", sliding_kv)
            .field("num_global_key_value_heads", full_kv)
            .field("attention_k_eq_v", k_is_v);
        json_.field("num_kv_shared_layers", n_shared)
            .field("hidden_size_per_layer_input", per_layer)
            .field("enable_moe_block", n_experts != 0);
        if (n_experts != 0)
            json_.field("num_experts", n_experts)
                .field("top_k_experts", n_used)
                .field("moe_intermediate_size", expert_size);
        json_.field("intermediate_size", ffn_.front()).field("use_double_wide_mlp", ffn_.back() == 2 * ffn_.front());
        if (const GgufTensor* table = tensor("per_layer_token_embd.weight");
            table != nullptr && table->shape.size() == 2)
            json_.field("vocab_size_per_layer_input", table->shape[0]);
        say_windows(windows);
        TRY_ASSIGN(const double theta, number_or("rope.freq_base_swa", 10000.0));
        TRY_ASSIGN(const double share, turned_share());
        json_.key("rope_parameters").begin_object().key("full_attention");
        TRY(write_rope("proportional"));
        json_.field("rope_type", "proportional").field("partial_rotary_factor", share).end_object();
        json_.key("sliding_attention")
            .begin_object()
            .field("rope_type", "default")
            .field("rope_theta", theta)
            .end_object()
            .end_object();
        return ok_status();
    }
    // Pairs that do not turn have a factor that stops them.
    Result<double> turned_share() {
        const GgufTensor* factors = tensor(kRopeFreqs);
        if (factors == nullptr) return 1.0;
        if (factors->type != GgmlType::kF32 || factors->shape != std::vector<uint64_t>{head_dim_ / 2})
            return not_said(format("tensor {}: expected F32 [{}]", kRopeFreqs, head_dim_ / 2));
        uint32_t n_turned = 0;
        for (uint32_t i = 0; i < head_dim_ / 2; ++i) {
            const float factor = widen(DType::kF32, factors->data.data() + i * sizeof(float));
            const bool is_turned = factor == 1.0f && n_turned == i;
            if (!is_turned && !(factor > 1e20f))
                return not_said(format("tensor {}: number {}: expected 1 for the pairs that turn and 1e30 for those "
                                       "behind them, found {:g}",
                                       kRopeFreqs, i, factor));
            n_turned += is_turned;
        }
        return 2.0 * n_turned / head_dim_;
    }

    Status say_olmo2() {
        TRY_ASSIGN(const uint32_t window, size_or("attention.sliding_window", 0));
        (void)find("attention.sliding_window_pattern");
        if (window == 0) return say_rope();
        ours_ = "Olmo3ForCausalLM";
        TRY_ASSIGN(const std::vector<bool> windows, windows_of(4));
        json_.field("sliding_window", window);
        say_windows(windows);
        TRY_ASSIGN(const double theta, number_or("rope.freq_base", 10000.0));
        // Layers with a window turn without scaling.
        json_.key("rope_parameters").begin_object().key("full_attention");
        TRY(write_rope());
        json_.end_object()
            .key("sliding_attention")
            .begin_object()
            .field("rope_type", "default")
            .field("rope_theta", theta)
            .end_object()
            .end_object();
        return ok_status();
    }

    Status say_granite() {
        for (const auto& [key, ours] :
             {std::pair("embedding_scale", "embedding_multiplier"), std::pair("residual_scale", "residual_multiplier"),
              std::pair("logit_scale", "logits_scaling")}) {
            TRY_ASSIGN(const double scale, number_or(key, 0.0));
            json_.field(ours, scale == 0.0 ? 1.0 : scale);
        }
        TRY_ASSIGN(const double scale, number_or("attention.scale", 0.0));
        json_.field("attention_multiplier", scale == 0.0 ? 1.0 / std::sqrt(head_dim_) : scale);
        return ok_status();
    }

    // Layers without heads of keys are of Mamba 2. Queries and keys turn where the file says so, which it does for no
    // model of Granite 4 with such layers.
    Status say_mamba() {
        TRY_ASSIGN(const uint32_t groups, size_of("ssm.group_count", 1024));
        TRY_ASSIGN(const uint32_t heads, size_of("ssm.time_step_rank", 1u << 16));
        TRY_ASSIGN(const uint32_t states, size_of("ssm.state_size"));
        TRY_ASSIGN(const uint32_t inner, size_of("ssm.inner_size"));
        TRY_ASSIGN(const uint32_t taps, size_of("ssm.conv_kernel"));
        TRY_ASSIGN(const uint32_t n_experts, size_or("expert_count", 0));
        TRY_ASSIGN(const uint32_t used, size_or("expert_used_count", 0));
        TRY_ASSIGN(const uint32_t size, size_or("expert_feed_forward_length", ffn_.front()));
        TRY_ASSIGN(const uint32_t shared, size_or("expert_shared_feed_forward_length", ffn_.front()));
        if (inner % heads != 0 || inner % hidden_ != 0)
            return not_said(format("{}: expected a multiple of {} {} and of {} {}, found {}",
                                   fields_.full("ssm.inner_size"), fields_.full("ssm.time_step_rank"), heads,
                                   fields_.full("embedding_length"), hidden_, inner));
        if (size != ffn_.front())
            return not_said(format("{}: expected {} as {}, found {}", fields_.full("expert_feed_forward_length"),
                                   ffn_.front(), fields_.full("feed_forward_length"), size));
        json_.field("mamba_n_groups", groups).field("mamba_n_heads", heads).field("mamba_d_head", inner / heads);
        json_.field("mamba_d_state", states).field("mamba_d_conv", taps).field("mamba_expand", inner / hidden_);
        const auto is_of = [&](std::string_view end) {
            return std::ranges::any_of(file_.tensors, [&](const GgufTensor& one) { return one.name.ends_with(end); });
        };
        json_.field("mamba_conv_bias", is_of(".ssm_conv1d.bias")).field("mamba_proj_bias", is_of(".ssm_in.bias"));
        const GgufValue* turns = find("rope.scaling.finetuned");
        json_.field("position_embedding_type", turns != nullptr && turns->as_flag() == true ? "rope" : "nope");
        json_.field("shared_intermediate_size", n_experts == 0 ? ffn_.front() : shared);
        json_.field("num_local_experts", n_experts).field("num_experts_per_tok", used);
        json_.key("layer_types").begin_array();
        for (const uint32_t kv : kv_heads_) json_.value(kv == 0 ? "mamba" : "attention");
        json_.end_array();
        return ok_status();
    }

    Status say_ministral3() {
        TRY_ASSIGN(const double beta, number_or("attention.temperature_scale", 0.0));
        TRY_ASSIGN(const double log_factor, number_or("rope.scaling.yarn_log_multiplier", 0.0));
        (void)find("attention.temperature_length");
        json_.key("rope_parameters");
        TRY(write_rope());
        json_.field("llama_4_scaling_beta", beta);
        if (log_factor != 0.0) json_.field("mscale", 1.0).field("mscale_all_dim", log_factor);
        json_.end_object();
        return ok_status();
    }

    Status say_delta() {
        TRY_ASSIGN(const uint32_t key_heads, size_of("ssm.group_count", 1024));
        TRY_ASSIGN(const uint32_t value_heads, size_of("ssm.time_step_rank", 1024));
        TRY_ASSIGN(const uint32_t key_dim, size_of("ssm.state_size"));
        TRY_ASSIGN(const uint32_t inner, size_of("ssm.inner_size"));
        TRY_ASSIGN(const uint32_t taps, size_of("ssm.conv_kernel"));
        TRY_ASSIGN(const uint32_t every, size_or("full_attention_interval", 4));
        if (inner % value_heads != 0)
            return not_said(format("{} {} is not a multiple of {} {}", fields_.full("ssm.inner_size"), inner,
                                   fields_.full("ssm.time_step_rank"), value_heads));
        json_.field("linear_num_key_heads", key_heads)
            .field("linear_num_value_heads", value_heads)
            .field("linear_key_head_dim", key_dim);
        json_.field("linear_value_head_dim", inner / value_heads)
            .field("linear_conv_kernel_dim", taps)
            .field("full_attention_interval", every);
        return ok_status();
    }

    Status say_experts(std::string_view count_name) {
        TRY_ASSIGN(const uint32_t n, size_of("expert_count"));
        TRY_ASSIGN(const uint32_t used, size_of("expert_used_count"));
        TRY_ASSIGN(const uint32_t size, size_or("expert_feed_forward_length", ffn_.front()));
        TRY_ASSIGN(const uint32_t shared, size_or("expert_shared_feed_forward_length", 0));
        json_.field(count_name, n)
            .field("num_experts_per_tok", used)
            .field("moe_intermediate_size", size)
            .field("norm_topk_prob", true);
        if (architecture_.gguf != "qwen3moe") json_.field("shared_expert_intermediate_size", shared);
        return ok_status();
    }

    Status say_mixtral() {
        TRY_ASSIGN(const uint32_t n, size_of("expert_count"));
        TRY_ASSIGN(const uint32_t used, size_of("expert_used_count"));
        TRY_ASSIGN(const uint32_t window, size_or("attention.sliding_window", 0));
        TRY_ASSIGN(const uint32_t size, size_or("expert_feed_forward_length", ffn_.front()));
        if (size != ffn_.front())
            return not_said(format("{}: expected {} as {}, found {}", fields_.full("expert_feed_forward_length"),
                                   ffn_.front(), fields_.full("feed_forward_length"), size));
        ours_ = "MixtralForCausalLM";
        json_.field("num_local_experts", n).field("num_experts_per_tok", used);
        if (window != 0) json_.field("sliding_window", window);
        return ok_status();
    }

    Status say_gpt_oss() {
        TRY_ASSIGN(const uint32_t n, size_of("expert_count"));
        TRY_ASSIGN(const uint32_t used, size_of("expert_used_count"));
        TRY_ASSIGN(const uint32_t size, size_or("expert_feed_forward_length", ffn_.front()));
        TRY_ASSIGN(const uint32_t window, size_or("attention.sliding_window", 128));
        if (size != ffn_.front())
            return not_said(format("{}: expected {} as {}, found {}", fields_.full("expert_feed_forward_length"),
                                   ffn_.front(), fields_.full("feed_forward_length"), size));
        json_.field("num_local_experts", n).field("num_experts_per_tok", used).field("sliding_window", window);
        return ok_status();
    }

    Status say_lfm2() {
        TRY_ASSIGN(const uint32_t taps, size_of("shortconv.l_cache"));
        json_.field("conv_L_cache", taps)
            .field("block_auto_adjust_ff_dim", false)
            .field("conv_bias", has("blk.0.shortconv.conv.bias"));
        json_.key("layer_types").begin_array();
        for (const uint32_t heads : kv_heads_) json_.value(heads == 0 ? "conv" : "full_attention");
        json_.end_array();
        if (architecture_.gguf == "lfm2") return ok_status();
        TRY_ASSIGN(const uint32_t n_dense, size_or("leading_dense_block_count", 0, n_layers_));
        TRY_ASSIGN(const double scale, number_or("expert_weights_scale", 1.0));
        TRY(say_experts("num_experts"));
        json_.field("num_dense_layers", n_dense).field("routed_scaling_factor", scale == 0.0 ? 1.0 : scale);
        return ok_status();
    }

    // A field that nobody read and that says something is refused where it changes the arithmetic, and told in the log
    // elsewhere.
    Status check_others() const {
        const std::string prefix = fields_.full("");
        for (const auto& [key, value] : file_.fields) {
            if (!key.starts_with(prefix)) continue;
            const std::string_view own = std::string_view(key).substr(prefix.size());
            if (read_.contains(std::string(own)) || std::ranges::find(kNeedNone, own) != kNeedNone.end()) continue;
            if (changes_arithmetic(own) && says_something(value))
                return not_said(format("{} = {}: lorad does not compute that", key, value.describe()));
            log_warn("{} = {} is not read", key, value.describe());
        }
        return ok_status();
    }

    const GgufFile& file_;
    const GgufArchitecture& architecture_;
    const GgufFields fields_;
    JsonWriter json_;
    std::set<std::string> read_;
    std::string_view ours_;
    uint32_t n_layers_ = 0, hidden_ = 0, n_heads_ = 0, head_dim_ = 0, positions_ = 0;
    std::vector<uint32_t> kv_heads_, ffn_;
};

}  // namespace

uint32_t n_drafting_layers(const GgufFile& file, const GgufArchitecture& architecture) {
    const GgufValue* value = GgufFields(file, architecture.gguf).find("nextn_predict_layers");
    const int64_t n = value == nullptr ? 0 : value->as_integer().value_or(0);
    return static_cast<uint32_t>(std::clamp<int64_t>(n, 0, kLayersMax));
}

Result<ModelConfig> family_config_from_gguf(const GgufFile& file, const GgufArchitecture& architecture) {
    return FamilyConfig(file, architecture).read();
}

}  // namespace lorad::model
