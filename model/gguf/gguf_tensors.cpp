#include "model/gguf/gguf_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>

#include "model/gguf/ggml_matrix.h"
#include "model/gguf/gguf_expected.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

uint64_t shape_size(std::span<const uint64_t> shape) {
    uint64_t n = 1;
    for (const uint64_t size : shape) n *= size;
    return n;
}

using Shape = std::vector<uint64_t>;

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
        const GgufTensor& up = *find_gguf_tensor(file_, format("{}ffn_up_exps{}", block, suffix));
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

}  // namespace

Result<GgufTensors> tensors_from_gguf(const GgufFile& file, const GgufArchitecture& architecture,
                                      const ModelConfig& config) {
    TRY_ASSIGN(const CheckedTensors checked, check_gguf_tensors(file, architecture, config));
    Taker taker(file, architecture, config);
    for (const GgufTensor* tensor : checked.tensors) taker.take(*tensor);
    GgufTensors out = std::move(taker).done();
    if (checked.n_drafting != 0)
        out.notes.push_back(
            format("{} tensors are not loaded: several tokens at once are not drafted", checked.n_drafting));
    return out;
}

}  // namespace lorad::model
