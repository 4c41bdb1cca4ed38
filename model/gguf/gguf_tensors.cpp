#include "model/gguf/gguf_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>

#include "model/config/config_rope.h"
#include "model/gguf/ggml_matrix.h"
#include "model/gguf/gguf_config.h"
#include "model/gguf/gguf_family.h"
#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::model {
namespace {

const GgufTensor* find_in(const GgufFile& file, std::string_view name) {
    const auto found = std::ranges::lower_bound(file.tensors, name, {},
                                                [](const GgufTensor& one) { return std::string_view(one.name); });
    return found == file.tensors.end() || found->name != name ? nullptr : &*found;
}

uint64_t shape_size(std::span<const uint64_t> shape) {
    uint64_t n = 1;
    for (const uint64_t size : shape) n *= size;
    return n;
}

DType dtype_of(GgmlType type) {
    switch (type) {
        case GgmlType::kF32: return DType::kF32;
        case GgmlType::kF16: return DType::kF16;
        case GgmlType::kBF16: return DType::kBF16;
        default: return DType::kPacked;
    }
}

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
    bool has(std::string_view name) const { return find_in(file_, name) != nullptr; }
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

// The file's tensors as ours.
class Taker {
  public:
    Taker(const GgufFile& file, const GgufArchitecture& architecture, const ModelConfig& config)
        : file_(file), architecture_(architecture), config_(config) {}

    // Does nothing if another tensor brings it along.
    void take(const GgufTensor& tensor) {
        const size_t dot = tensor.name.rfind('.');
        const std::string_view suffix = std::string_view(tensor.name).substr(dot),
                               stem =
                                   std::string_view(tensor.name)
                                       .substr(0, suffix == ".ssm_a" || suffix == ".ssm_d" ? tensor.name.size() : dot);
        const std::string_view part = stem.substr(stem.rfind('.') + 1);
        const std::string block(stem.substr(0, stem.size() - part.size()));
        if (part == "ffn_gate_exps") return take_gate_and_up(tensor, block, suffix);
        if (part == "ffn_up_exps") return;
        if (suffix == ".scale") {
            const char* of = part == "ffn_gate_inp" ? "router.scale" : "router.per_expert_scale";
            return take_plain(tensor, format("model.layers.{}.{}", layer_of(block), of));
        }
        if (part == "ssm_ba") return take_gates(tensor, block);
        std::optional<std::string> module = name_from_gguf(stem, architecture_.fused, architecture_.has_norms_after);
        CHECK(module.has_value());
        if (is_mamba(block)) module = of_mamba(*module);
        if (part == "ssm_a") return take_decay(tensor, *module);
        const bool is_bare = part == "ssm_dt" || part == "ssm_d" || part == "attn_sinks" || part == "exp_probs_b" ||
                             part == "layer_output_scale";
        std::string name = is_bare ? *module : *module + std::string(suffix);
        if (part == "ffn_down_exps") return take_stack(tensor, std::move(name), suffix);
        if (part == "ffn_gate_up_exps") return take_stack(tensor, std::move(name), suffix);
        if (part == "ssm_conv1d" || part == "shortconv.conv" || stem.ends_with("shortconv.conv"))
            return take_conv(tensor, std::move(name), block);
        if (is_mamba(block) && (part == "ssm_d" || part == "ssm_norm")) return take_vector(tensor, std::move(name));
        const bool is_paired = architecture_.permutes_q_and_k && (part == "attn_q" || part == "attn_k");
        if (is_paired) {
            const uint64_t half = config_.head_dim / 2;
            return take_rows(tensor, std::move(name), [half](uint64_t row) { return row_in_gguf(row, half); });
        }
        if (!heads_are_tiled(block)) return take_plain(tensor, std::move(name));
        if (part == "ssm_out") return take_columns(tensor, std::move(name), block);
        const uint64_t of_head = part == "attn_gate" || part == "attn_qkv" ? delta_of(block).value_head_dim : 1;
        const uint64_t before = part == "attn_qkv" ? 2 * delta_of(block).key_size() : 0;
        const bool is_of_heads =
            part == "attn_qkv" || part == "attn_gate" || part == "ssm_beta" || part == "ssm_alpha" || part == "ssm_dt";
        if (!is_of_heads) return take_plain(tensor, std::move(name));
        take_rows(tensor, std::move(name), grouped_rows(delta_of(block), before, of_head));
    }
    GgufTensors done() && {
        std::ranges::sort(out_.tensors, {}, &Tensor::name);
        return std::move(out_);
    }

  private:
    using RowOf = std::function<uint64_t(uint64_t)>;

    uint32_t layer_of(std::string_view block) const {
        uint32_t layer = 0;
        for (const char digit : block.substr(std::string_view("blk.").size())) {
            if (digit < '0' || digit > '9') break;
            layer = layer * 10 + static_cast<uint32_t>(digit - '0');
        }
        return layer;
    }
    DeltaFacts delta_of(std::string_view block) const { return config_.layer(layer_of(block)).delta; }
    // Qwen3.5's converter puts the value heads of all key heads by turns.
    bool heads_are_tiled(std::string_view block) const {
        return architecture_.gguf.starts_with("qwen35") && block.starts_with("blk.") &&
               config_.layer(layer_of(block)).mixer == Mixer::kDeltaNet;
    }
    bool is_mamba(std::string_view block) const {
        return block.starts_with("blk.") && config_.layer(layer_of(block)).mixer == Mixer::kMamba;
    }
    // Mamba 2 has the words of delta nets.
    static std::string of_mamba(const std::string& module) {
        constexpr std::string_view kDelta = ".linear_attn.";
        const size_t at = module.find(kDelta);
        return at == std::string::npos ? module : module.substr(0, at) + ".mamba." + module.substr(at + kDelta.size());
    }
    // Our row, by key head, -> the file's, by turns; rows before the heads stay.
    static RowOf grouped_rows(const DeltaFacts& facts, uint64_t before, uint64_t of_head) {
        const uint64_t keys = facts.n_key_heads, ratio = facts.n_value_heads / facts.n_key_heads;
        return [=](uint64_t row) {
            if (row < before) return row;
            const uint64_t head = (row - before) / of_head, key = head / ratio, turn = head % ratio;
            return before + (turn * keys + key) * of_head + (row - before) % of_head;
        };
    }

    Tensor ours_of(const GgufTensor& tensor, std::string name, Shape shape) const {
        return {std::move(name), dtype_of(tensor.type), std::move(shape), tensor.data, nullptr};
    }
    void take_plain(const GgufTensor& tensor, std::string name) {
        Shape shape = tensor.shape;
        if (name.ends_with("mlp.shared_expert_gate.weight")) shape.insert(shape.begin(), 1);
        Tensor ours = ours_of(tensor, std::move(name), shape);
        if (shape.size() == 2 && ours.dtype == DType::kPacked)
            ours.source = std::make_shared<GgmlMatrix>(std::vector{&tensor},
                                                       [](uint64_t row) { return GgmlMatrix::Place{0, row}; });
        out_.tensors.push_back(std::move(ours));
    }
    // A matrix or a vector in our order of rows.
    void take_rows(const GgufTensor& tensor, std::string name, const RowOf& row_of) {
        if (tensor.shape.size() == 1) {
            std::vector<float> numbers;
            for (uint64_t i = 0; i < tensor.shape[0]; ++i) numbers.push_back(number_of(tensor, row_of(i)));
            return put_numbers(std::move(name), numbers, tensor.shape);
        }
        put_matrix(tensor, std::move(name), tensor.shape, {&tensor},
                   [row_of](uint64_t row) { return GgmlMatrix::Place{0, row_of(row)}; });
    }
    void put_matrix(const GgufTensor& like, std::string name, Shape shape, std::vector<const GgufTensor*> tensors,
                    std::function<GgmlMatrix::Place(uint64_t)> place, std::vector<uint32_t> columns = {}) {
        Tensor ours = ours_of(like, std::move(name), std::move(shape));
        ours.dtype = DType::kPacked;
        ours.source = std::make_shared<GgmlMatrix>(std::move(tensors), std::move(place), std::move(columns));
        out_.tensors.push_back(std::move(ours));
    }
    static float number_of(const GgufTensor& tensor, uint64_t i) {
        const DType dtype = dtype_of(tensor.type);
        return widen(dtype, tensor.data.data() + i * bytes_of(dtype));
    }
    void put_numbers(std::string name, std::span<const float> numbers, Shape shape) {
        std::vector<std::byte> bytes(numbers.size_bytes());
        std::memcpy(bytes.data(), numbers.data(), bytes.size());
        out_.tensors.push_back({std::move(name), DType::kF32, std::move(shape), bytes, nullptr});
        out_.owned.push_back(std::move(bytes));
        out_.tensors.back().data = out_.owned.back();
    }

    // -exp(A_log)
    void take_decay(const GgufTensor& tensor, std::string name) {
        const std::string block = tensor.name.substr(0, tensor.name.rfind('.') + 1);
        const RowOf row_of =
            heads_are_tiled(block) ? grouped_rows(delta_of(block), 0, 1) : [](uint64_t row) { return row; };
        std::vector<float> logs;
        for (uint64_t i = 0; i < tensor.shape[0]; ++i) logs.push_back(std::log(-number_of(tensor, row_of(i))));
        put_numbers(std::move(name), logs, {tensor.shape[0]});
    }
    // Ours is a vector, whatever the file cuts it into.
    void take_vector(const GgufTensor& tensor, std::string name) {
        std::vector<float> numbers;
        for (uint64_t i = 0; i < shape_size(tensor.shape); ++i) numbers.push_back(number_of(tensor, i));
        put_numbers(std::move(name), numbers, {numbers.size()});
    }
    // Ours has a size of 1 between channels and taps.
    void take_conv(const GgufTensor& tensor, std::string name, const std::string& block) {
        const bool is_tiled = heads_are_tiled(block);
        const RowOf row_of =
            is_tiled ? grouped_rows(delta_of(block), 2 * delta_of(block).key_size(), delta_of(block).value_head_dim)
                     : [](uint64_t row) { return row; };
        if (tensor.shape.size() == 1) return take_plain(tensor, std::move(name));  // its bias
        const uint64_t n_taps = tensor.shape[1];
        std::vector<float> numbers;
        for (uint64_t i = 0; i < tensor.shape[0] * n_taps; ++i)
            numbers.push_back(number_of(tensor, row_of(i / n_taps) * n_taps + i % n_taps));
        put_numbers(std::move(name), numbers, {tensor.shape[0], 1, n_taps});
    }
    void take_columns(const GgufTensor& tensor, std::string name, const std::string& block) {
        const RowOf column_of = grouped_rows(delta_of(block), 0, delta_of(block).value_head_dim);
        std::vector<uint32_t> columns;
        for (uint64_t column = 0; column < tensor.shape[1]; ++column)
            columns.push_back(static_cast<uint32_t>(column_of(column)));
        put_matrix(
            tensor, std::move(name), tensor.shape, {&tensor}, [](uint64_t row) { return GgmlMatrix::Place{0, row}; },
            std::move(columns));
    }
    // The rows b and a of each key head's value heads.
    void take_gates(const GgufTensor& tensor, const std::string& block) {
        const DeltaFacts facts = delta_of(block);
        const uint64_t ratio = facts.n_value_heads / facts.n_key_heads;
        for (const auto& [module, first] : {std::pair("in_proj_b", uint64_t{0}), std::pair("in_proj_a", ratio)}) {
            const uint64_t begin = first;
            put_matrix(tensor, format("model.layers.{}.linear_attn.{}.weight", layer_of(block), module),
                       {facts.n_value_heads, tensor.shape[1]}, {&tensor}, [ratio, begin](uint64_t row) {
                           return GgmlMatrix::Place{0, row / ratio * 2 * ratio + begin + row % ratio};
                       });
        }
    }
    // The experts one behind the other.
    void take_stack(const GgufTensor& tensor, std::string name, std::string_view suffix) {
        if (suffix == ".bias") return take_plain(tensor, std::move(name));
        const uint64_t columns = tensor.shape.back(), rows = shape_size(tensor.shape) / columns;
        if (dtype_of(tensor.type) != DType::kPacked) {
            out_.tensors.push_back(ours_of(tensor, std::move(name), {rows, columns}));
            return;
        }
        put_matrix(tensor, std::move(name), {rows, columns}, {&tensor},
                   [](uint64_t row) { return GgmlMatrix::Place{0, row}; });
    }
    // One matrix of each expert's gate and up, as the family has them: one behind the other, or by turns.
    void take_gate_and_up(const GgufTensor& gate, const std::string& block, std::string_view suffix) {
        const uint32_t layer = layer_of(block);
        const ExpertFacts facts = config_.layer(layer).ffn.experts;
        const GgufTensor& up = *find_in(file_, format("{}ffn_up_exps{}", block, suffix));
        const uint64_t wide = facts.size;
        const auto place = [wide, by_turns = facts.gate_up_interleaved](uint64_t row) {
            const uint64_t expert = row / (2 * wide), in_expert = row % (2 * wide);
            if (by_turns) return GgmlMatrix::Place{static_cast<uint32_t>(in_expert % 2), expert * wide + in_expert / 2};
            return GgmlMatrix::Place{static_cast<uint32_t>(in_expert / wide), expert * wide + in_expert % wide};
        };
        const std::string name = format("model.layers.{}.mlp.experts.gate_up_proj{}", layer, suffix);
        if (suffix == ".bias") {
            std::vector<float> numbers;
            for (uint64_t row = 0; row < facts.n * 2 * wide; ++row) {
                const GgmlMatrix::Place at = place(row);
                numbers.push_back(number_of(at.tensor == 0 ? gate : up, at.row));
            }
            return put_numbers(name, numbers, {facts.n, 2 * wide});
        }
        put_matrix(gate, name, {facts.n * 2 * wide, config_.hidden_size}, {&gate, &up}, place);
    }

    const GgufFile& file_;
    const GgufArchitecture& architecture_;
    const ModelConfig& config_;
    GgufTensors out_;
};

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

Result<GgufTensors> tensors_from_gguf(const GgufFile& file, const GgufArchitecture& architecture,
                                      const ModelConfig& config) {
    TRY(check_quantization_version(file));
    const Expected expected(file, architecture, config);
    const bool drafts = n_drafting_layers(file, architecture) != 0;
    size_t n_found = 0, n_drafting = 0;
    std::vector<const GgufTensor*> found;
    for (const GgufTensor& tensor : file.tensors) {
        if (tensor.name == kRopeFreqs || tensor.name == kRopeShort || tensor.name == kRopeLong) continue;
        if (drafts && is_drafting_layer(tensor.name, config)) {
            ++n_drafting;
            continue;
        }
        const auto known = expected.shapes().find(tensor.name);
        if (known == expected.shapes().end()) {
            return wrong(tensor, format("{} is no part of the {} that the file's fields describe",
                                        shape_text(tensor.shape), architecture.gguf));
        }
        TRY(check_gguf_tensor(tensor, known->second));
        if (tensor.name.ends_with(".ssm_a")) TRY(check_decays(tensor));
        ++n_found;
        found.push_back(&tensor);
    }
    if (n_found != expected.shapes().size()) {
        for (const auto& [name, shape] : expected.shapes()) {
            if (find_in(file, name) != nullptr) continue;
            return make_error(
                ErrorCode::kInvalidModel,
                format("tensor {} is missing: expected {} (by the file's fields)", name, shape_text(shape)));
        }
    }
    Taker taker(file, architecture, config);
    for (const GgufTensor* tensor : found) taker.take(*tensor);
    GgufTensors out = std::move(taker).done();
    if (n_drafting != 0)
        out.notes.push_back(format("{} tensors are not loaded: several tokens at once are not drafted", n_drafting));
    return out;
}

}  // namespace lorad::model
