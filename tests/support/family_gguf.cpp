#include "tests/support/family_gguf.h"

#include <algorithm>
#include <cmath>
#include <span>

#include <gtest/gtest.h>

#include "model/quant/matrix_source.h"
#include "model/quant/quantize.h"
#include "tests/support/gguf_writer.h"

namespace lorad::testing {
namespace {

using model::LayerFacts;
using model::LinearModule;
using model::ModelConfig;
using model::Tensor;
using Shape = std::vector<uint64_t>;
using Numbers = std::vector<float>;

Numbers decoded(const Tensor& tensor) {
    if (!tensor.source) return model::numbers_of(tensor);
    Numbers numbers(tensor.n_elements());
    tensor.source->decode(0, tensor.shape[0], numbers);
    return numbers;
}

std::string layer_name(uint32_t layer, const std::string& part) {
    return "model.layers." + std::to_string(layer) + "." + part;
}

void append(Numbers& to, const Numbers& from, size_t begin, size_t n) {
    to.insert(to.end(), from.begin() + int64_t(begin), from.begin() + int64_t(begin + n));
}

// The experts' single matrices as stacks.
void stack_experts(NamedNumbers& numbers, const ModelConfig& config) {
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        const auto experts = config.layer(layer).ffn.experts;
        const std::string prefix = layer_name(layer, "mlp.experts.");
        if (!numbers.contains(prefix + "0.gate_proj.weight")) continue;
        Numbers gate_up, down;
        for (uint32_t e = 0; e < experts.n; ++e) {
            const std::string one = prefix + std::to_string(e) + ".";
            for (const char* part : {"gate_proj.weight", "up_proj.weight"})
                append(gate_up, numbers.at(one + part), 0, numbers.at(one + part).size());
            append(down, numbers.at(one + "down_proj.weight"), 0, numbers.at(one + "down_proj.weight").size());
            for (const char* part : {"gate_proj.weight", "up_proj.weight", "down_proj.weight"})
                numbers.erase(one + part);
        }
        numbers[prefix + "gate_up_proj.weight"] = std::move(gate_up);
        numbers[prefix + "down_proj.weight"] = std::move(down);
    }
}

// Qwen3-Next's fused projections, which hold each key head's rows side by side.
void separate_delta(NamedNumbers& numbers, const ModelConfig& config) {
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        const std::string prefix = layer_name(layer, "linear_attn.");
        if (!numbers.contains(prefix + "in_proj_qkvz.weight")) continue;
        const auto delta = config.layer(layer).delta;
        const size_t hidden = config.hidden_size, ratio = delta.n_value_heads / delta.n_key_heads,
                     key = delta.key_head_dim, value = ratio * delta.value_head_dim;
        const Numbers fused = numbers.at(prefix + "in_proj_qkvz.weight"),
                      gates = numbers.at(prefix + "in_proj_ba.weight");
        Numbers q, k, v, z, b, a;
        for (size_t head = 0; head < delta.n_key_heads; ++head) {
            const size_t at = head * (2 * key + 2 * value);
            append(q, fused, at * hidden, key * hidden);
            append(k, fused, (at + key) * hidden, key * hidden);
            append(v, fused, (at + 2 * key) * hidden, value * hidden);
            append(z, fused, (at + 2 * key + value) * hidden, value * hidden);
            append(b, gates, head * 2 * ratio * hidden, ratio * hidden);
            append(a, gates, (head * 2 + 1) * ratio * hidden, ratio * hidden);
        }
        append(q, k, 0, k.size());
        append(q, v, 0, v.size());
        numbers[prefix + "in_proj_qkv.weight"] = std::move(q);
        numbers[prefix + "in_proj_z.weight"] = std::move(z);
        numbers[prefix + "in_proj_b.weight"] = std::move(b);
        numbers[prefix + "in_proj_a.weight"] = std::move(a);
        numbers.erase(prefix + "in_proj_qkvz.weight");
        numbers.erase(prefix + "in_proj_ba.weight");
    }
}

// Granite's fused gates and ups of feed-forwards that every row passes.
void separate_gate_up(NamedNumbers& numbers) {
    constexpr std::string_view kFused = ".gate_up_proj.weight";
    NamedNumbers parts;
    for (auto at = numbers.begin(); at != numbers.end();) {
        const std::string& name = at->first;
        if (!name.ends_with(kFused) || name.find(".experts.") != std::string::npos) {
            ++at;
            continue;
        }
        const std::string stem = name.substr(0, name.size() - kFused.size());
        const auto half = static_cast<std::ptrdiff_t>(at->second.size() / 2);
        parts[stem + ".gate_proj.weight"] = Numbers(at->second.begin(), at->second.begin() + half);
        parts[stem + ".up_proj.weight"] = Numbers(at->second.begin() + half, at->second.end());
        at = numbers.erase(at);
    }
    numbers.merge(parts);
}

class Converter {
  public:
    Converter(const NamedNumbers& numbers, const ModelConfig& config, std::string gguf, ExpertsAs experts)
        : numbers_(numbers), config_(config), gguf_(std::move(gguf)), experts_as_(experts) {}

    std::string run() {
        write_fields();
        put("token_embd.weight", take("model.embed_tokens.weight"), {config_.vocab_size, config_.hidden_size});
        put(is("lfm2") ? "token_embd_norm.weight" : "output_norm.weight", norm("model.norm.weight"),
            {config_.hidden_size});
        if (!config_.tied_embeddings)
            put("output.weight", take("lm_head.weight"), {config_.vocab_size, config_.hidden_size});
        if (const uint64_t ple = config_.layer(0).per_layer_input; ple != 0) {
            put("per_layer_token_embd.weight", take("model.embed_tokens_per_layer.weight"),
                {config_.per_layer_vocab, ple * config_.n_layers});
            put("per_layer_model_proj.weight", take("model.per_layer_model_projection.weight"),
                {ple * config_.n_layers, config_.hidden_size});
            put("per_layer_proj_norm.weight", norm("model.per_layer_projection_norm.weight"), {ple});
        }
        for (uint32_t layer = 0; layer < config_.n_layers; ++layer) write_layer(layer);
        return writer_.file();
    }

  private:
    bool is(const char* name) const { return gguf_ == name; }
    bool permutes() const {
        return is("llama") || is("granite") || is("granitehybrid") || is("smollm3") || is("mistral3");
    }
    const Numbers& take(const std::string& name) const {
        const auto found = numbers_.find(name);
        EXPECT_NE(found, numbers_.end()) << name;
        static const Numbers kNone;
        return found == numbers_.end() ? kNone : found->second;
    }
    // Converters add the one that files leave out.
    Numbers norm(const std::string& name) const {
        Numbers numbers = take(name);
        if (config_.one_plus_norms) {
            for (float& number : numbers) number += 1.0f;
        }
        return numbers;
    }
    void put(const std::string& name, const Numbers& numbers, const Shape& shape, uint32_t type = 0) {
        writer_.tensor(name, type, shape,
                       std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)));
    }
    void number(const char* key, uint32_t value) { writer_.number<uint32_t>(gguf_ + "." + key, 4, value); }
    void real(const char* key, double value) { writer_.number<float>(gguf_ + "." + key, 6, static_cast<float>(value)); }

    void write_fields() {
        writer_.text("general.architecture", gguf_);
        number("context_length", config_.max_positions);
        number("embedding_length", config_.hidden_size);
        number("block_count", config_.n_layers);
        number("attention.head_count", config_.n_heads);
        real("attention.layer_norm_rms_epsilon", config_.rms_norm_eps);
        real("rope.freq_base", config_.rope.theta);
        std::vector<uint32_t> kv, ffn;
        std::vector<bool> windows;
        uint32_t window = 0, full_dim = 0, swa_dim = 0;
        for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
            const LayerFacts facts = config_.layer(layer);
            kv.push_back(facts.attention.n_kv_heads);
            ffn.push_back(facts.ffn.size);
            windows.push_back(facts.attention.window != 0);
            window = std::max(window, facts.attention.window);
            (windows.back() ? swa_dim : full_dim) = facts.attention.head_dim;
        }
        if (std::ranges::count(kv, kv.front()) == int64_t(kv.size()))
            number("attention.head_count_kv", kv.front());
        else
            writer_.array(gguf_ + ".attention.head_count_kv", kv);
        if (is("gemma4")) {
            writer_.array(gguf_ + ".feed_forward_length", ffn);
            number("attention.key_length", full_dim);
            number("attention.key_length_swa", swa_dim);
        } else {
            number("feed_forward_length", config_.intermediate_size);
            number("attention.key_length", config_.head_dim);
        }
        if (window != 0) number("attention.sliding_window", window);
        if (is("gemma4") || is("olmo2")) writer_.flags(gguf_ + ".attention.sliding_window_pattern", windows);
        write_own_fields();
    }
    void write_own_fields() {
        const model::RopeConfig& rope = config_.rope;
        const LayerFacts first = config_.layer(0);
        if (is("gemma4")) {
            const uint64_t half = config_.layer(config_.n_layers - 1).attention.head_dim / 2;
            Numbers factors(half, 1e30f);
            std::fill(factors.begin(), factors.begin() + rope.rotary_dim / 2, 1.0f);
            put("rope_freqs.weight", factors, {half});
            uint32_t shared = 0;
            for (uint32_t layer = 0; layer < config_.n_layers; ++layer)
                shared += config_.layer(layer).attention.kv_from.has_value();
            number("attention.shared_kv_layers", shared);
            number("embedding_length_per_layer_input", first.per_layer_input);
            real("rope.freq_base_swa", config_.rope_of(1).theta);
        } else {
            number("rope.dimension_count", rope.rotary_dim);
        }
        if (config_.final_softcap != 0) real("final_logit_softcapping", config_.final_softcap);
        if (is("granite") || is("granitehybrid")) {
            real("attention.scale", attention().scale);
            real("embedding_scale", config_.embed_scale);
            real("residual_scale", first.residual_multiplier);
            real("logit_scale", 1.0 / config_.logit_scale);
        }
        if (rope.type == model::RopeType::kYarn) {
            writer_.text(gguf_ + ".rope.scaling.type", "yarn");
            real("rope.scaling.factor", rope.factor);
            number("rope.scaling.original_context_length", rope.original_max_positions);
            real("rope.scaling.yarn_beta_fast", rope.beta_fast);
            real("rope.scaling.yarn_beta_slow", rope.beta_slow);
            if (is("mistral3")) real("rope.scaling.yarn_log_multiplier", 1.0);
        }
        if (is("mistral3")) real("attention.temperature_scale", first.attention.position_scale.beta);
        for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
            const LayerFacts facts = config_.layer(layer);
            if (facts.mixer == model::Mixer::kDeltaNet) {
                number("ssm.conv_kernel", facts.delta.taps);
                number("ssm.state_size", facts.delta.key_head_dim);
                number("ssm.group_count", facts.delta.n_key_heads);
                number("ssm.time_step_rank", facts.delta.n_value_heads);
                number("ssm.inner_size", facts.delta.value_size());
                number("full_attention_interval", interval());
                break;
            }
            if (facts.mixer == model::Mixer::kMamba) {
                number("ssm.conv_kernel", facts.mamba.taps);
                number("ssm.state_size", facts.mamba.state_size);
                number("ssm.group_count", facts.mamba.n_groups);
                number("ssm.time_step_rank", facts.mamba.n_heads);
                number("ssm.inner_size", facts.mamba.inner_size());
                writer_.number<uint8_t>(gguf_ + ".rope.scaling.finetuned", 7, 0);
                break;
            }
            if (facts.mixer == model::Mixer::kShortConv) {
                number("shortconv.l_cache", facts.conv.taps);
                break;
            }
        }
        if (first.ffn.experts.n == 0) return;
        number("expert_count", first.ffn.experts.n);
        number("expert_used_count", first.ffn.experts.top_k);
        if (!is("llama")) number("expert_feed_forward_length", first.ffn.experts.size);
        if (first.ffn.experts.shared_size != 0)
            number("expert_shared_feed_forward_length", first.ffn.experts.shared_size);
    }
    model::AttentionFacts attention() const {
        uint32_t layer = 0;
        while (config_.layer(layer).mixer != model::Mixer::kAttention) ++layer;
        return config_.layer(layer).attention;
    }
    uint32_t interval() const {
        uint32_t layer = 0;
        while (config_.layer(layer).mixer != model::Mixer::kAttention) ++layer;
        return layer + 1;
    }

    void write_layer(uint32_t layer) {
        const LayerFacts facts = config_.layer(layer);
        const std::string block = "blk." + std::to_string(layer) + ".";
        const uint64_t hidden = config_.hidden_size;
        const auto own = [&](const std::string& part) { return layer_name(layer, part); };
        if (facts.mixer_norm.before) put(block + "attn_norm.weight", norm(own("input_layernorm.weight")), {hidden});
        if (facts.mixer == model::Mixer::kAttention) write_attention(layer, facts, block);
        if (facts.mixer == model::Mixer::kDeltaNet) write_delta(layer, facts, block);
        if (facts.mixer == model::Mixer::kMamba) write_mamba(layer, facts.mamba, block);
        if (facts.mixer == model::Mixer::kShortConv) {
            put(block + "shortconv.in_proj.weight", take(own("conv.in_proj.weight")), {3 * hidden, hidden});
            put(block + "shortconv.conv.weight", take(own("conv.conv.weight")), {hidden, facts.conv.taps});
            put(block + "shortconv.out_proj.weight", take(own("conv.out_proj.weight")), {hidden, hidden});
        }
        const bool is_behind = gguf_.starts_with("qwen35") || is("qwen3next") || is("gpt-oss");
        if (facts.mixer_norm.after) {
            put(block + "post_attention_norm.weight", norm(own("post_attention_layernorm.weight")), {hidden});
            put(block + "post_ffw_norm.weight", norm(own("post_feedforward_layernorm.weight")), {hidden});
            if (facts.ffn_norm.before)
                put(block + "ffn_norm.weight", norm(own("pre_feedforward_layernorm.weight")), {hidden});
        } else {
            put(block + (is_behind ? "post_attention_norm.weight" : "ffn_norm.weight"),
                norm(own("post_attention_layernorm.weight")), {hidden});
        }
        if (facts.ffn.kind == model::FeedForward::kExperts)
            write_experts(layer, facts.ffn.experts, block);
        else
            write_dense(own("mlp."), block, "", facts.ffn.size);
        if (facts.ffn.kind == model::FeedForward::kDenseAndExperts) {
            write_experts(layer, facts.ffn.experts, block);
            put(block + "ffn_gate_inp.scale", take(own("router.scale")), {hidden});
            put(block + "ffn_down_exps.scale", take(own("router.per_expert_scale")), {facts.ffn.experts.n});
            for (const auto& [theirs, name] : {std::pair("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
                                               std::pair("post_ffw_norm_1", "post_feedforward_layernorm_1"),
                                               std::pair("post_ffw_norm_2", "post_feedforward_layernorm_2")})
                put(block + theirs + ".weight", norm(own(std::string(name) + ".weight")), {hidden});
        }
        if (const uint64_t ple = facts.per_layer_input; ple != 0) {
            put(block + "inp_gate.weight", take(own("per_layer_input_gate.weight")), {ple, hidden});
            put(block + "proj.weight", take(own("per_layer_projection.weight")), {hidden, ple});
            put(block + "post_norm.weight", norm(own("post_per_layer_input_norm.weight")), {hidden});
        }
        if (facts.stream_scale) put(block + "layer_output_scale.weight", take(own("layer_scalar")), {1});
    }
    void write_dense(const std::string& from, const std::string& block, const std::string& kind, uint64_t wide) {
        const uint64_t hidden = config_.hidden_size;
        put(block + "ffn_gate" + kind + ".weight", take(from + "gate_proj.weight"), {wide, hidden});
        put(block + "ffn_up" + kind + ".weight", take(from + "up_proj.weight"), {wide, hidden});
        put(block + "ffn_down" + kind + ".weight", take(from + "down_proj.weight"), {hidden, wide});
    }
    // Each head [2][half] becomes [half][2].
    Numbers in_pairs(const Numbers& numbers, uint64_t n_heads) const {
        const size_t n_rows = n_heads * config_.head_dim, k = numbers.size() / n_rows, half = config_.head_dim / 2;
        Numbers out;
        for (size_t head = 0; head < n_heads; ++head) {
            for (size_t j = 0; j < half; ++j) {
                for (size_t i = 0; i < 2; ++i) append(out, numbers, ((head * 2 + i) * half + j) * k, k);
            }
        }
        return out;
    }
    void write_attention(uint32_t layer, const LayerFacts& facts, const std::string& block) {
        const uint64_t hidden = config_.hidden_size;
        const auto own = [&](const std::string& part) { return layer_name(layer, "self_attn." + part); };
        for (const auto& [name, theirs, module] :
             {std::tuple("q_proj", "attn_q", LinearModule::kQ), std::tuple("k_proj", "attn_k", LinearModule::kK),
              std::tuple("v_proj", "attn_v", LinearModule::kV)}) {
            const uint64_t n = config_.shape(layer, module).n;
            if (n == 0) continue;
            const bool turns = permutes() && module != LinearModule::kV;
            const uint64_t heads = module == LinearModule::kQ ? facts.attention.n_heads : facts.attention.n_kv_heads;
            const auto arranged = [&](const Numbers& numbers) { return turns ? in_pairs(numbers, heads) : numbers; };
            put(block + theirs + ".weight", arranged(take(own(std::string(name) + ".weight"))), {n, hidden});
            if (facts.attention.qkv_bias)
                put(block + theirs + ".bias", arranged(take(own(std::string(name) + ".bias"))), {n});
        }
        put(block + "attn_output.weight", take(own("o_proj.weight")), {hidden, facts.attention.q_size()});
        if (facts.attention.o_bias) put(block + "attn_output.bias", take(own("o_proj.bias")), {hidden});
        if (facts.attention.sinks) put(block + "attn_sinks.weight", take(own("sinks")), {facts.attention.n_heads});
        if (facts.attention.qk_norm == model::QkNorm::kNone) return;
        put(block + "attn_q_norm.weight", norm(own("q_norm.weight")), {take(own("q_norm.weight")).size()});
        if (!facts.attention.kv_from)
            put(block + "attn_k_norm.weight", norm(own("k_norm.weight")), {take(own("k_norm.weight")).size()});
    }
    // Value heads by turns of the key heads, `of_head` rows of k numbers each; what stands before them stays.
    Numbers tiled(const Numbers& numbers, const model::DeltaFacts& delta, size_t n_before, size_t of_head) const {
        if (!gguf_.starts_with("qwen35")) return numbers;
        const size_t keys = delta.n_key_heads, ratio = delta.n_value_heads / keys;
        Numbers out;
        append(out, numbers, 0, n_before);
        for (size_t turn = 0; turn < ratio; ++turn) {
            for (size_t key = 0; key < keys; ++key)
                append(out, numbers, n_before + (key * ratio + turn) * of_head, of_head);
        }
        return out;
    }
    void write_delta(uint32_t layer, const LayerFacts& facts, const std::string& block) {
        const model::DeltaFacts& delta = facts.delta;
        const uint64_t hidden = config_.hidden_size, heads = delta.n_value_heads, value = delta.value_head_dim;
        const auto own = [&](const std::string& part) -> const Numbers& {
            return take(layer_name(layer, "linear_attn." + part));
        };
        put(block + "attn_qkv.weight",
            tiled(own("in_proj_qkv.weight"), delta, 2 * delta.key_size() * hidden, value * hidden),
            {delta.conv_size(), hidden});
        put(block + "attn_gate.weight", tiled(own("in_proj_z.weight"), delta, 0, value * hidden),
            {delta.value_size(), hidden});
        if (is("qwen3next")) {
            const size_t part = heads / delta.n_key_heads * hidden;
            Numbers both;
            for (size_t key = 0; key < delta.n_key_heads; ++key) {
                append(both, own("in_proj_b.weight"), key * part, part);
                append(both, own("in_proj_a.weight"), key * part, part);
            }
            put(block + "ssm_ba.weight", both, {2 * heads, hidden});
        } else {
            put(block + "ssm_beta.weight", tiled(own("in_proj_b.weight"), delta, 0, hidden), {heads, hidden});
            put(block + "ssm_alpha.weight", tiled(own("in_proj_a.weight"), delta, 0, hidden), {heads, hidden});
        }
        put(block + "ssm_conv1d.weight",
            tiled(own("conv1d.weight"), delta, 2 * delta.key_size() * delta.taps, value * delta.taps),
            {delta.conv_size(), delta.taps});
        put(block + "ssm_dt.bias", tiled(own("dt_bias"), delta, 0, 1), {heads});
        Numbers decay = tiled(own("A_log"), delta, 0, 1);
        for (float& number : decay) number = -std::exp(number);
        put(block + "ssm_a", decay, {heads});
        put(block + "ssm_norm.weight", own("norm.weight"), {value});
        Numbers out;  // columns
        const Numbers& rows = own("out_proj.weight");
        for (size_t row = 0; row < hidden; ++row) {
            Numbers one;
            append(one, rows, row * delta.value_size(), delta.value_size());
            append(out, tiled(one, delta, 0, value), 0, delta.value_size());
        }
        put(block + "ssm_out.weight", out, {hidden, delta.value_size()});
    }

    void write_mamba(uint32_t layer, const model::MambaFacts& mamba, const std::string& block) {
        const uint64_t hidden = config_.hidden_size, heads = mamba.n_heads, inner = mamba.inner_size();
        const auto own = [&](const std::string& part) -> const Numbers& {
            return take(layer_name(layer, "mamba." + part));
        };
        put(block + "ssm_in.weight", own("in_proj.weight"), {inner + mamba.conv_size() + heads, hidden});
        put(block + "ssm_conv1d.weight", own("conv1d.weight"), {mamba.conv_size(), mamba.taps});
        if (mamba.conv_bias) put(block + "ssm_conv1d.bias", own("conv1d.bias"), {mamba.conv_size()});
        put(block + "ssm_dt.bias", own("dt_bias"), {heads});
        Numbers decay = own("A_log");
        for (float& number : decay) number = -std::exp(number);
        put(block + "ssm_a", decay, {heads, 1});
        put(block + "ssm_d", own("D"), {heads, 1});
        if (mamba.n_groups == 1)
            put(block + "ssm_norm.weight", own("norm.weight"), {inner});
        else
            put(block + "ssm_norm.weight", own("norm.weight"), {mamba.n_groups, inner / mamba.n_groups});
        put(block + "ssm_out.weight", own("out_proj.weight"), {hidden, inner});
    }

    // [experts][2 size] rows of k: those of gate, or of up.
    Numbers half_of(const Numbers& numbers, const model::ExpertFacts& experts, size_t k, size_t which) const {
        Numbers out;
        for (size_t e = 0; e < experts.n; ++e) {
            for (size_t i = 0; i < experts.size; ++i) {
                const size_t row = experts.gate_up_interleaved ? 2 * i + which : which * experts.size + i;
                append(out, numbers, (e * 2 * experts.size + row) * k, k);
            }
        }
        return out;
    }
    void put_stack(const std::string& name, const Numbers& numbers, const Shape& shape) {
        if (experts_as_ == ExpertsAs::kMxfp4) return put_mxfp4(name, numbers, shape);
        const bool is_gate = name.find("_gate_") != std::string::npos;
        if (experts_as_ == ExpertsAs::kPlain || (experts_as_ == ExpertsAs::kMixed && !is_gate))
            return put(name, numbers, shape);
        std::string bytes(numbers.size() / 32 * 34, '\0');
        model::quantize_row(model::GgmlType::kQ8_0, numbers, std::as_writable_bytes(std::span(bytes)));
        writer_.tensor(name, 8, shape, bytes);
    }
    // ggml's MXFP4: a scale, then 16 bytes whose low halves are the first 16 numbers.
    void put_mxfp4(const std::string& name, const Numbers& numbers, const Shape& shape) {
        constexpr float kNumbers[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
        std::string bytes;
        for (size_t at = 0; at < numbers.size(); at += 32) {
            float largest = 0;
            for (size_t i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(numbers[at + i]));
            // The smallest scale by which all of them are numbers of four bits.
            int exponent = largest == 0 ? 0 : static_cast<int>(std::ceil(std::log2(largest / 6)));
            const auto code_of = [&](float number) {
                const float scaled = std::fabs(std::ldexp(number, -exponent));
                const auto* found = std::ranges::find(kNumbers, scaled);
                EXPECT_NE(found, std::end(kNumbers)) << number;
                return static_cast<uint8_t>((found - kNumbers) | (std::signbit(number) ? 8 : 0));
            };
            bytes += static_cast<char>(exponent + 127);
            for (size_t i = 0; i < 16; ++i)
                bytes += static_cast<char>(code_of(numbers[at + i]) | code_of(numbers[at + 16 + i]) << 4);
        }
        writer_.tensor(name, 39, shape, bytes);
    }
    void write_experts(uint32_t layer, const model::ExpertFacts& experts, const std::string& block) {
        const uint64_t hidden = config_.hidden_size, n = experts.n, size = experts.size;
        const auto own = [&](const std::string& part) -> const Numbers& {
            return take(layer_name(layer, "mlp." + part));
        };
        put(block + "ffn_gate_inp.weight", own("gate.weight"), {n, hidden});
        put_stack(block + "ffn_gate_exps.weight", half_of(own("experts.gate_up_proj.weight"), experts, hidden, 0),
                  {n, size, hidden});
        put_stack(block + "ffn_up_exps.weight", half_of(own("experts.gate_up_proj.weight"), experts, hidden, 1),
                  {n, size, hidden});
        put_stack(block + "ffn_down_exps.weight", own("experts.down_proj.weight"), {n, hidden, size});
        if (experts.bias) {
            put(block + "ffn_gate_inp.bias", own("gate.bias"), {n});
            put(block + "ffn_gate_exps.bias", half_of(own("experts.gate_up_proj.bias"), experts, 1, 0), {n, size});
            put(block + "ffn_up_exps.bias", half_of(own("experts.gate_up_proj.bias"), experts, 1, 1), {n, size});
            put(block + "ffn_down_exps.bias", own("experts.down_proj.bias"), {n, hidden});
        }
        if (experts.router == model::Router::kSigmoidBias) put(block + "exp_probs_b.bias", own("expert_bias"), {n});
        if (experts.shared_size == 0) return;
        write_dense(layer_name(layer, "mlp.shared_expert."), block, "_shexp", experts.shared_size);
        put(block + "ffn_gate_inp_shexp.weight", own("shared_expert_gate.weight"), {hidden});
    }

    const NamedNumbers& numbers_;
    const ModelConfig& config_;
    const std::string gguf_;
    const ExpertsAs experts_as_;
    GgufWriter writer_;
};

}  // namespace

NamedNumbers meaning_of(const model::TensorFiles& files, const ModelConfig& config) {
    NamedNumbers numbers;
    for (const Tensor& tensor : files.tensors()) {
        if (config.tied_embeddings && tensor.name == "lm_head.weight") continue;
        numbers[tensor.name] = decoded(tensor);
    }
    stack_experts(numbers, config);
    separate_delta(numbers, config);
    separate_gate_up(numbers);
    return numbers;
}

std::string family_as_gguf(const NamedNumbers& numbers, const ModelConfig& config, const std::string& gguf,
                           ExpertsAs experts) {
    return Converter(numbers, config, gguf, experts).run();
}

}  // namespace lorad::testing
