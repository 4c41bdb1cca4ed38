#include "model/gguf/gguf_tensors.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

#include "model/gguf/gguf_config.h"
#include "model/quant/ggml_blocks.h"
#include "model/quant/ggml_pack.h"
#include "model/quant/matrix_source.h"
#include "proto/base/format.h"
#include "proto/json.h"

namespace lorad::model {
namespace {

// A matrix [n][k] of blocks. Rows of heads that the file has in pairs are given in halves.
class GgmlMatrix final : public MatrixSource {
  public:
    // half: of a head's rows, where the file has them in pairs; 0: the rows are in our order.
    GgmlMatrix(GgmlType type, std::span<const std::byte> data, uint64_t n_rows, uint64_t n_columns, uint64_t half)
        : type_(type), data_(data), n_columns_(n_columns), row_bytes_(data.size() / n_rows), half_(half) {}

    std::string_view format() const override { return name_of(type_); }
    void decode(uint64_t row_begin, uint64_t n_rows, std::span<float> out) const override {
        if (half_ == 0) return decode_ggml(type_, data_.subspan(row_begin * row_bytes_, n_rows * row_bytes_), out);
        for (uint64_t i = 0; i < n_rows; ++i) {
            const uint64_t row = row_in_gguf(row_begin + i, half_);
            decode_ggml(type_, data_.subspan(row * row_bytes_, row_bytes_), out.subspan(i * n_columns_, n_columns_));
        }
    }

    std::optional<gpu::WeightFormat> device_format() const override { return device_format_of(type_); }
    void pack(uint64_t row_begin, uint64_t n_rows, std::span<uint8_t> codes, std::span<std::byte> records) const override {
        const uint64_t record_bytes = records.size() / n_rows;
        for (uint64_t i = 0; i < n_rows; ++i) {
            const uint64_t row = half_ == 0 ? row_begin + i : row_in_gguf(row_begin + i, half_);
            pack_ggml_row(type_, data_.subspan(row * row_bytes_, row_bytes_), codes.subspan(i * n_columns_, n_columns_), records.subspan(i * record_bytes, record_bytes));
        }
    }

  private:
    GgmlType type_;
    std::span<const std::byte> data_;
    uint64_t n_columns_, row_bytes_, half_;
};

DType dtype_of(GgmlType type) {
    switch (type) {
        case GgmlType::kF32: return DType::kF32;
        case GgmlType::kF16: return DType::kF16;
        case GgmlType::kBF16: return DType::kBF16;
        default: return DType::kPacked;
    }
}

using Shape = std::vector<uint64_t>;

// Every tensor that the file must have, with its shape.
class Expected {
  public:
    explicit Expected(const ModelConfig& config) : config_(config) {
        add("token_embd.weight", {config.vocab_size, config.hidden_size});
        if (!config.tied_embeddings) add("output.weight", {config.vocab_size, config.hidden_size});
        add("output_norm.weight", {config.hidden_size});
        for (uint32_t layer = 0; layer < config.n_layers; ++layer) add_block(format("blk.{}.", layer));
    }
    const std::map<std::string, Shape, std::less<>>& shapes() const { return shapes_; }

  private:
    void add(std::string name, Shape shape) { shapes_.emplace(std::move(name), std::move(shape)); }
    void add_linear(const std::string& name, Shape shape, bool has_bias) {
        if (has_bias) add(name + ".bias", {shape[0]});
        add(name + ".weight", std::move(shape));
    }
    void add_block(const std::string& block) {
        const uint64_t hidden = config_.hidden_size, q = config_.q_size(), kv = config_.kv_size(), wide = config_.intermediate_size;
        add(block + "attn_norm.weight", {hidden});
        add(block + "ffn_norm.weight", {hidden});
        if (config_.fused_qkv) {
            add_linear(block + "attn_qkv", {q + 2 * kv, hidden}, false);
        } else {
            add_linear(block + "attn_q", {q, hidden}, config_.qkv_bias);
            add_linear(block + "attn_k", {kv, hidden}, config_.qkv_bias);
            add_linear(block + "attn_v", {kv, hidden}, config_.qkv_bias);
        }
        if (config_.qk_norm) {
            add(block + "attn_q_norm.weight", {config_.head_dim});
            add(block + "attn_k_norm.weight", {config_.head_dim});
        }
        if (config_.layer(0).mixer_norm.after) {
            add(block + "post_attention_norm.weight", {hidden});
            add(block + "post_ffw_norm.weight", {hidden});
        }
        add_linear(block + "attn_output", {hidden, q}, config_.o_bias);
        if (!config_.fused_gate_up) add_linear(block + "ffn_gate", {wide, hidden}, config_.mlp_bias);
        add_linear(block + "ffn_up", {config_.fused_gate_up ? 2 * wide : wide, hidden}, config_.mlp_bias);
        add_linear(block + "ffn_down", {hidden, wide}, config_.mlp_bias);
    }

    const ModelConfig& config_;
    std::map<std::string, Shape, std::less<>> shapes_;
};

Error wrong(const GgufTensor& tensor, std::string_view what) {
    return make_error(ErrorCode::kInvalidModel, format("tensor {}: {}", json_quote(tensor.name), what));
}

Status check_gguf_tensor(const GgufTensor& tensor, const Shape& shape) {
    if (tensor.shape != shape) return wrong(tensor, format("expected shape {} (by the file's fields), found {}", shape_text(shape), shape_text(tensor.shape)));
    if (shape.size() == 1 && !is_plain(tensor.type)) return wrong(tensor, format("expected F32, F16 or BF16, found {}", name_of(tensor.type)));
    if (info_of(tensor.type).is_read) return ok_status();
    return wrong(tensor, format("{} is not read; lorad reads {}: take the model in one of these", name_of(tensor.type), readable_ggml_types()));
}

// Quantized tensors are laid out as ggml has it since version 2 of the quantizations.
Status check_quantization_version(const GgufFile& file) {
    constexpr std::string_view kKey = "general.quantization_version";
    const GgufValue* version = file.field(kKey);
    if (version == nullptr || version->as_integer() == 2) return ok_status();
    const auto packed = std::ranges::find_if(file.tensors, [](const GgufTensor& tensor) { return !is_plain(tensor.type); });
    if (packed == file.tensors.end()) return ok_status();
    return wrong(*packed, format("{} of {} = {}, expected 2; convert the model again", name_of(packed->type), kKey, version->describe()));
}

}  // namespace

Result<GgufTensors> tensors_from_gguf(const GgufFile& file, const GgufArchitecture& architecture, const ModelConfig& config) {
    TRY(check_quantization_version(file));
    const Expected expected(config);
    GgufTensors out;
    size_t n_found = 0;
    for (const GgufTensor& tensor : file.tensors) {
        if (tensor.name == kRopeFreqs || tensor.name == kRopeShort || tensor.name == kRopeLong) continue;
        const auto known = expected.shapes().find(tensor.name);
        if (known == expected.shapes().end()) {
            return wrong(tensor, format("{} is no part of the {} that the file's fields describe", shape_text(tensor.shape), architecture.gguf));
        }
        TRY(check_gguf_tensor(tensor, known->second));
        ++n_found;
        const size_t dot = tensor.name.rfind('.');
        const std::optional<std::string> module = name_from_gguf(std::string_view(tensor.name).substr(0, dot), architecture.fused, architecture.has_norms_after);
        CHECK(module.has_value());
        Tensor ours{*module + tensor.name.substr(dot), dtype_of(tensor.type), tensor.shape, tensor.data, nullptr};
        const std::string_view part = std::string_view(*module).substr(module->rfind('.') + 1);
        const bool is_paired = architecture.permutes_q_and_k && (part == "q_proj" || part == "k_proj");
        const uint64_t half = is_paired ? config.head_dim / 2 : 0;
        if (tensor.shape.size() == 2 && (ours.dtype == DType::kPacked || is_paired)) {
            ours.dtype = DType::kPacked;
            ours.source = std::make_shared<GgmlMatrix>(tensor.type, tensor.data, tensor.shape[0], tensor.shape[1], half);
        } else if (is_paired) {
            std::vector<std::byte> bias(tensor.data.size());
            const size_t n_bytes = bytes_of(ours.dtype);
            for (uint64_t row = 0; row < tensor.shape[0]; ++row) {
                std::memcpy(bias.data() + row * n_bytes, tensor.data.data() + row_in_gguf(row, half) * n_bytes, n_bytes);
            }
            ours.data = bias;
            out.owned.push_back(std::move(bias));
        }
        out.tensors.push_back(std::move(ours));
    }
    if (n_found != expected.shapes().size()) {
        for (const auto& [name, shape] : expected.shapes()) {
            if (std::ranges::find(file.tensors, name, &GgufTensor::name) != file.tensors.end()) continue;
            return make_error(ErrorCode::kInvalidModel, format("tensor {} is missing: expected {} (by the file's fields)", name, shape_text(shape)));
        }
    }
    std::ranges::sort(out.tensors, {}, &Tensor::name);
    return out;
}

}  // namespace lorad::model
