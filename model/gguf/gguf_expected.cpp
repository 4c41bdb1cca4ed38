#include "model/gguf/gguf_expected.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "model/config/config_rope.h"
#include "model/gguf/gguf_config.h"
#include "model/gguf/gguf_family.h"
#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::model {

const GgufTensor* find_gguf_tensor(const GgufFile& file, std::string_view name) {
    const auto found = std::ranges::lower_bound(file.tensors, name, {},
                                                [](const GgufTensor& one) { return std::string_view(one.name); });
    return found == file.tensors.end() || found->name != name ? nullptr : &*found;
}

DType dtype_of(GgmlType type) {
    switch (type) {
        case GgmlType::kF32: return DType::kF32;
        case GgmlType::kF16: return DType::kF16;
        case GgmlType::kBF16: return DType::kBF16;
        default: return DType::kPacked;
    }
}

namespace {

using Shape = std::vector<uint64_t>;

// GGUF knows no sizes of 1 in front.
Shape without_ones(Shape shape) {
    while (shape.size() > 1 && shape.front() == 1) shape.erase(shape.begin());
    return shape;
}

// Every tensor that the file must have, with its shape.
class Expected {
  public:
    Expected(const GgufFile& file, const GgufArchitecture& architecture, const ModelConfig& config)
        : file_(file), architecture_(architecture), config_(config) {
        const bool is_lfm2 = architecture.gguf.starts_with("lfm2");
        add("token_embd.weight", {config.vocab_size, config.hidden_size});
        if (!config.tied_embeddings) add("output.weight", {config.vocab_size, config.hidden_size});
        add(is_lfm2 ? "token_embd_norm.weight" : "output_norm.weight", {config.hidden_size});
        if (const uint64_t ple = config.layer(0).per_layer_input; ple != 0) {
            add("per_layer_token_embd.weight", {config.per_layer_vocab, ple * config.n_layers});
            add("per_layer_model_proj.weight", {ple * config.n_layers, config.hidden_size});
            add("per_layer_proj_norm.weight", {ple});
        }
        for (uint32_t layer = 0; layer < config.n_layers; ++layer) add_block(layer, format("blk.{}.", layer));
    }
    const std::map<std::string, Shape, std::less<>>& shapes() const { return shapes_; }

  private:
    bool has(std::string_view name) const { return find_gguf_tensor(file_, name) != nullptr; }
    void add(std::string name, Shape shape) { shapes_.emplace(std::move(name), without_ones(std::move(shape))); }
    void add_linear(const std::string& name, Shape shape, bool has_bias) {
        if (has_bias) add(name + ".bias", {shape[0]});
        add(name + ".weight", std::move(shape));
    }
    void add_block(uint32_t layer, const std::string& block) {
        const LayerFacts facts = config_.layer(layer);
        const uint64_t hidden = config_.hidden_size;
        if (facts.mixer_norm.before) add(block + "attn_norm.weight", {hidden});
        switch (facts.mixer) {
            case Mixer::kAttention: add_attention(layer, facts.attention, block); break;
            case Mixer::kDeltaNet: add_delta(facts.delta, block); break;
            case Mixer::kShortConv: add_conv(facts.conv, block); break;
            case Mixer::kMamba: add_mamba(facts.mamba, block); break;
        }
        if (facts.mixer_norm.after) add(block + "post_attention_norm.weight", {hidden});
        const bool is_behind_attention = architecture_.gguf.starts_with("qwen35") ||
                                         architecture_.gguf == "qwen3next" || architecture_.gguf == "gpt-oss";
        if (facts.ffn_norm.before)
            add(block + (is_behind_attention ? "post_attention_norm.weight" : "ffn_norm.weight"), {hidden});
        if (facts.ffn_norm.after) add(block + "post_ffw_norm.weight", {hidden});
        if (facts.ffn.kind == FeedForward::kExperts)
            add_experts(facts.ffn.experts, block);
        else
            add_dense(block, "", facts.ffn.size, facts.ffn.bias);
        if (facts.ffn.kind == FeedForward::kDenseAndExperts) {
            add_experts(facts.ffn.experts, block);
            add(block + "ffn_gate_inp.scale", {hidden});
            add(block + "ffn_down_exps.scale", {facts.ffn.experts.n});
            for (const char* norm : {"pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"})
                add(block + norm + ".weight", {hidden});
        }
        if (const uint64_t ple = facts.per_layer_input; ple != 0) {
            add(block + "inp_gate.weight", {ple, hidden});
            add(block + "proj.weight", {hidden, ple});
            add(block + "post_norm.weight", {hidden});
        }
        if (facts.stream_scale) add(block + "layer_output_scale.weight", {1});
    }
    void add_dense(const std::string& block, const std::string& kind, uint64_t wide, bool has_bias) {
        const uint64_t hidden = config_.hidden_size;
        if (!config_.fused_gate_up) add_linear(block + "ffn_gate" + kind, {wide, hidden}, has_bias);
        add_linear(block + "ffn_up" + kind, {config_.fused_gate_up ? 2 * wide : wide, hidden}, has_bias);
        add_linear(block + "ffn_down" + kind, {hidden, wide}, has_bias);
    }
    void add_attention(uint32_t layer, const AttentionFacts& facts, const std::string& block) {
        const uint64_t hidden = config_.hidden_size, q = facts.q_size(), kv = facts.kv_size();
        if (config_.fused_qkv) {
            add_linear(block + "attn_qkv", {q + 2 * kv, hidden}, false);
        } else {
            add_linear(block + "attn_q", {config_.shape(layer, LinearModule::kQ).n, hidden}, facts.qkv_bias);
            if (facts.k_rows() != 0) add_linear(block + "attn_k", {kv, hidden}, facts.qkv_bias);
            if (facts.v_rows() != 0) add_linear(block + "attn_v", {kv, hidden}, facts.qkv_bias);
        }
        if (facts.qk_norm != QkNorm::kNone) {
            const bool is_wide = facts.qk_norm == QkNorm::kFullWidth;
            add(block + "attn_q_norm.weight", {is_wide ? q : facts.head_dim});
            if (!facts.kv_from) add(block + "attn_k_norm.weight", {is_wide ? kv : facts.head_dim});
        }
        if (facts.sinks) add(block + "attn_sinks.weight", {facts.n_heads});
        add_linear(block + "attn_output", {hidden, q}, facts.o_bias);
    }
    void add_delta(const DeltaFacts& facts, const std::string& block) {
        const uint64_t hidden = config_.hidden_size, heads = facts.n_value_heads;
        add(block + "attn_qkv.weight", {facts.conv_size(), hidden});
        add(block + "attn_gate.weight", {facts.value_size(), hidden});
        if (has(block + "ssm_ba.weight")) {
            add(block + "ssm_ba.weight", {2 * heads, hidden});
        } else {
            add(block + "ssm_beta.weight", {heads, hidden});
            add(block + "ssm_alpha.weight", {heads, hidden});
        }
        add(block + "ssm_conv1d.weight", {facts.conv_size(), facts.taps});
        add(block + "ssm_dt.bias", {heads});
        add(block + "ssm_a", {heads});
        add(block + "ssm_norm.weight", {facts.value_head_dim});
        add(block + "ssm_out.weight", {hidden, facts.value_size()});
    }
    void add_mamba(const MambaFacts& facts, const std::string& block) {
        const uint64_t hidden = config_.hidden_size, inner = facts.inner_size();
        add_linear(block + "ssm_in", {inner + facts.conv_size() + facts.n_heads, hidden}, facts.proj_bias);
        add_linear(block + "ssm_conv1d", {facts.conv_size(), facts.taps}, facts.conv_bias);
        add(block + "ssm_dt.bias", {facts.n_heads});
        add(block + "ssm_a", {facts.n_heads, 1});
        add(block + "ssm_d", {facts.n_heads, 1});
        add(block + "ssm_norm.weight", {facts.n_groups, inner / facts.n_groups});
        add_linear(block + "ssm_out", {hidden, inner}, facts.proj_bias);
    }
    void add_conv(const ConvFacts& facts, const std::string& block) {
        const uint64_t hidden = config_.hidden_size;
        add_linear(block + "shortconv.in_proj", {3 * hidden, hidden}, facts.bias);
        add_linear(block + "shortconv.conv", {hidden, facts.taps}, facts.bias);
        add_linear(block + "shortconv.out_proj", {hidden, hidden}, facts.bias);
    }
    void add_experts(const ExpertFacts& facts, const std::string& block) {
        const uint64_t hidden = config_.hidden_size, n = facts.n, wide = facts.size;
        const auto add_stack = [&](const char* name, uint64_t rows, uint64_t columns) {
            add(block + name + ".weight", {n, rows, columns});
            if (facts.bias) add(block + name + ".bias", {n, rows});
        };
        add_linear(block + "ffn_gate_inp", {n, hidden}, facts.bias);
        if (has(block + "ffn_gate_up_exps.weight")) {
            add_stack("ffn_gate_up_exps", 2 * wide, hidden);
        } else {
            add_stack("ffn_gate_exps", wide, hidden);
            add_stack("ffn_up_exps", wide, hidden);
        }
        add_stack("ffn_down_exps", hidden, wide);
        if (facts.router == Router::kSigmoidBias) add(block + "exp_probs_b.bias", {n});
        if (facts.shared_size == 0) return;
        add_dense(block, "_shexp", facts.shared_size, false);
        if (facts.shared_gate) add(block + "ffn_gate_inp_shexp.weight", {1, hidden});
    }

    const GgufFile& file_;
    const GgufArchitecture& architecture_;
    const ModelConfig& config_;
    std::map<std::string, Shape, std::less<>> shapes_;
};

Error wrong(const GgufTensor& tensor, std::string_view what) {
    return make_error(ErrorCode::kInvalidModel, format("tensor {}: {}", json_quote(tensor.name), what));
}

Status check_gguf_tensor(const GgufTensor& tensor, const Shape& shape) {
    if (tensor.shape != shape)
        return wrong(tensor, format("expected shape {} (by the file's fields), found {}", shape_text(shape),
                                    shape_text(tensor.shape)));
    const bool is_small = shape.size() == 1 || tensor.name.ends_with(".bias") ||
                          tensor.name.ends_with("conv1d.weight") || tensor.name.ends_with("shortconv.conv.weight") ||
                          tensor.name.ends_with("ssm_norm.weight") || tensor.name.ends_with(".ssm_a") ||
                          tensor.name.ends_with(".ssm_d");
    if (is_small && !is_plain(tensor.type))
        return wrong(tensor, format("expected F32, F16 or BF16, found {}", name_of(tensor.type)));
    if (info_of(tensor.type).is_read) return ok_status();
    return wrong(tensor, format("{} is not read; lorad reads {}: take the model in one of these", name_of(tensor.type),
                                readable_ggml_types()));
}

// A delta net's decay is -exp(A_log).
Status check_decays(const GgufTensor& tensor) {
    for (uint64_t i = 0; i < tensor.shape[0]; ++i) {
        const DType dtype = dtype_of(tensor.type);
        const float decay = widen(dtype, tensor.data.data() + i * bytes_of(dtype));
        if (!(decay < 0.0f) || !std::isfinite(decay))
            return wrong(tensor, format("number {}: expected a negative one, found {}", i, decay));
    }
    return ok_status();
}

// Quantized tensors are laid out as ggml has it since version 2 of the quantizations.
Status check_quantization_version(const GgufFile& file) {
    constexpr std::string_view kKey = "general.quantization_version";
    const GgufValue* version = file.field(kKey);
    if (version == nullptr || version->as_integer() == 2) return ok_status();
    const auto packed =
        std::ranges::find_if(file.tensors, [](const GgufTensor& tensor) { return !is_plain(tensor.type); });
    if (packed == file.tensors.end()) return ok_status();
    return wrong(*packed, format("{} of {} = {}, expected 2; convert the model again", name_of(packed->type), kKey,
                                 version->describe()));
}

// A layer behind the model's own, which drafts several tokens at once.
bool is_drafting_layer(std::string_view name, const ModelConfig& config) {
    constexpr std::string_view kBlock = "blk.";
    if (!name.starts_with(kBlock)) return false;
    uint64_t layer = 0;
    for (const char digit : name.substr(kBlock.size())) {
        if (digit < '0' || digit > '9' || layer > kVocabMax) break;
        layer = layer * 10 + static_cast<uint64_t>(digit - '0');
    }
    return layer >= config.n_layers;
}

}  // namespace

Result<CheckedTensors> check_gguf_tensors(const GgufFile& file, const GgufArchitecture& architecture,
                                          const ModelConfig& config) {
    TRY(check_quantization_version(file));
    const Expected expected(file, architecture, config);
    const bool drafts = n_drafting_layers(file, architecture) != 0;
    CheckedTensors checked;
    for (const GgufTensor& tensor : file.tensors) {
        if (tensor.name == kRopeFreqs || tensor.name == kRopeShort || tensor.name == kRopeLong) continue;
        if (drafts && is_drafting_layer(tensor.name, config)) {
            ++checked.n_drafting;
            continue;
        }
        const auto known = expected.shapes().find(tensor.name);
        if (known == expected.shapes().end()) {
            return wrong(tensor, format("{} is no part of the {} that the file's fields describe",
                                        shape_text(tensor.shape), architecture.gguf));
        }
        TRY(check_gguf_tensor(tensor, known->second));
        if (tensor.name.ends_with(".ssm_a")) TRY(check_decays(tensor));
        checked.tensors.push_back(&tensor);
    }
    if (checked.tensors.size() != expected.shapes().size()) {
        for (const auto& [name, shape] : expected.shapes()) {
            if (find_gguf_tensor(file, name) != nullptr) continue;
            return make_error(
                ErrorCode::kInvalidModel,
                format("tensor {} is missing: expected {} (by the file's fields)", name, shape_text(shape)));
        }
    }
    return checked;
}

}  // namespace lorad::model
