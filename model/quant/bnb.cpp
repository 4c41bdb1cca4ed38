#include "model/quant/bnb.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "model/quant/matrix_source.h"
#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::model {
namespace {

constexpr std::string_view kBnb = "bitsandbytes";
constexpr uint32_t kCodes = 16, kNestedCodes = 256;
constexpr uint64_t kStateBytesMax = 1 << 16;
constexpr int64_t kBlockMax = 1 << 24;

struct StateKind {
    std::string_view part, format, format_of_nested;
};
constexpr StateKind kStates[] = {{"weight.quant_state.bitsandbytes__nf4", "NF4", "NF4 with double quantization"},
                                 {"weight.quant_state.bitsandbytes__fp4", "FP4", "FP4 with double quantization"}};

// The content of quant_state, a JSON text in a tensor.
struct BnbState {
    uint64_t n = 0, k = 0;
    uint64_t block = 0;         // weights that share an absmax, counted over the whole matrix
    uint64_t nested_block = 0;  // absmax values that share a scale; 0: they are not quantized
    float nested_offset = 0.0f;
};

Result<BnbState> read_state(const Tensor& tensor) {
    if (tensor.dtype != DType::kU8 || tensor.shape.size() != 1)
        return wrong_tensor(tensor, "a text in U8 of one dimension");
    const std::string_view text(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
    TRY_ASSIGN(const JsonDocument document, parse_json(text, {.name = tensor.name,
                                                              .code = ErrorCode::kInvalidModel,
                                                              .max_bytes = kStateBytesMax,
                                                              .max_depth = 4,
                                                              .max_values = 256}));
    const JsonValue root = document.root();
    BnbState state;
    TRY_ASSIGN(const auto shape, root.require("shape"));
    if (!shape.is_array() || shape.size() != 2)
        return shape.error("expected rows and columns of a matrix, found " + shape.describe());
    TRY_ASSIGN(const auto sizes, shape.as_array());
    TRY_ASSIGN(state.n, sizes[0].as_uint(UINT32_MAX));
    TRY_ASSIGN(state.k, sizes[1].as_uint(UINT32_MAX));
    if (state.n == 0 || state.k == 0) return shape.error("expected sizes from 1 on, found " + shape.dump());
    TRY_ASSIGN(const auto block, root.require("blocksize"));
    TRY_ASSIGN(const int64_t block_size, block.as_int(1, kBlockMax));
    state.block = static_cast<uint64_t>(block_size);
    TRY_ASSIGN(const int64_t nested_block, root.int_or("nested_blocksize", 0, 1, kBlockMax));
    state.nested_block = static_cast<uint64_t>(nested_block);
    TRY_ASSIGN(const double offset, root.number_or("nested_offset", 0.0));
    state.nested_offset = static_cast<float>(offset);
    return state;
}

// Codes of 4 bits, the first of two in the high half of a byte, over the whole matrix; so are the blocks, which may run
// over the ends of rows.
class CodebookMatrix final : public MatrixSource {
  public:
    CodebookMatrix(const StateKind& kind, const BnbState& state, const Tensor& codes, const Tensor& map,
                   const Tensor& absmax, const Tensor* nested_absmax, const Tensor* nested_map)
        : format_(nested_map ? kind.format_of_nested : kind.format),
          state_(state),
          codes_(codes.data),
          absmax_(absmax) {
        for (uint32_t i = 0; i < kCodes; ++i) map_[i] = number_at(map, i);
        if (!nested_map) return;
        nested_absmax_ = *nested_absmax;
        for (uint32_t i = 0; i < kNestedCodes; ++i) nested_map_[i] = number_at(*nested_map, i);
    }

    std::string_view format() const override { return format_; }

    void decode(uint64_t row_begin, uint64_t n_rows, std::span<float> out) const override {
        uint64_t i = row_begin * state_.k;
        const uint64_t end = i + n_rows * state_.k;
        float* to = out.data();
        while (i < end) {
            const uint64_t block = i / state_.block, block_end = std::min(end, (block + 1) * state_.block);
            const float scale = scale_of(block);
            std::array<float, kCodes> values;
            for (uint32_t code = 0; code < kCodes; ++code) values[code] = map_[code] * scale;
            if (i % 2 != 0 && i < block_end) *to++ = values[std::to_integer<uint32_t>(codes_[i++ / 2]) & 15];
            for (; i + 1 < block_end; i += 2) {
                const auto two = std::to_integer<uint32_t>(codes_[i / 2]);
                *to++ = values[two >> 4];
                *to++ = values[two & 15];
            }
            if (i < block_end) *to++ = values[std::to_integer<uint32_t>(codes_[i++ / 2]) >> 4];
        }
    }

    // Where no block of weights that share a scale crosses the end of a row, or of the 64 that do on the device.
    std::optional<gpu::WeightFormat> device_format() const override {
        constexpr uint64_t kTableBlock = 64;
        const bool fits = state_.k % 2 == 0 && state_.block % kTableBlock == 0 &&
                          (state_.k % state_.block == 0 || state_.block % state_.k == 0);
        return fits ? std::optional(gpu::WeightFormat::kTable) : std::nullopt;
    }
    void pack(uint64_t row_begin, uint64_t n_rows, std::span<uint8_t> codes,
              std::span<std::byte> records) const override {
        constexpr uint64_t kTableBlock = 64;
        const uint64_t record_bytes = records.size() / n_rows;
        for (uint64_t r = 0; r < n_rows; ++r) {
            const uint64_t first = (row_begin + r) * state_.k;
            for (uint64_t i = 0; i < state_.k; i += 2) {
                const auto two = std::to_integer<uint8_t>(codes_[(first + i) / 2]);
                codes[r * state_.k + i] = two >> 4;
                codes[r * state_.k + i + 1] = two & 15;
            }
            for (uint64_t i = 0; i < state_.k; i += kTableBlock) {
                const float scale = scale_of((first + i) / state_.block);
                std::memcpy(records.data() + r * record_bytes + i / kTableBlock * sizeof scale, &scale, sizeof scale);
            }
        }
    }
    std::span<const float> table() const override { return map_; }

  private:
    float scale_of(uint64_t block) const {
        if (!nested_absmax_) return number_at(absmax_, block);
        const float scaled = nested_map_[std::to_integer<uint8_t>(absmax_.data[block])] *
                             number_at(*nested_absmax_, block / state_.nested_block);
        return scaled + state_.nested_offset;  // two roundings, as bitsandbytes has two operations
    }

    std::string_view format_;
    BnbState state_;
    std::span<const std::byte> codes_;
    Tensor absmax_;
    std::optional<Tensor> nested_absmax_;
    std::array<float, kCodes> map_{};
    std::array<float, kNestedCodes> nested_map_{};
};

Result<Tensor> make_codebook(LinearTensors& linear, const StateKind& kind) {
    const Tensor& state_text = *linear.take(kind.part);
    TRY_ASSIGN(const BnbState state, read_state(state_text));
    TRY_ASSIGN(const Tensor* codes, linear.require("weight", kind.format));
    TRY_ASSIGN(const Tensor* absmax, linear.require("weight.absmax", kind.format));
    TRY_ASSIGN(const Tensor* map, linear.require("weight.quant_map", kind.format));
    const uint64_t n_weights = state.n * state.k, n_code_bytes = ceil_div(n_weights, 2);  // of two 32-bit numbers
    if (codes->data.size() != n_code_bytes) {  // their type may be any: bnb_4bit_quant_storage
        return wrong_tensor(*codes, format("{} bytes, two weights each of {} {}", n_code_bytes,
                                           shape_text(std::array{state.n, state.k}), kind.format));
    }
    TRY(check_floats(*map, {kCodes}));
    const uint64_t n_scales = ceil_div(n_weights, state.block);
    const Tensor* nested_absmax = nullptr;
    const Tensor* nested_map = nullptr;
    if (absmax->dtype == DType::kU8) {
        TRY(check_tensor(*absmax, DType::kU8, {n_scales}));
        TRY_ASSIGN(nested_absmax, linear.require("weight.nested_absmax", "double quantization"));
        TRY_ASSIGN(nested_map, linear.require("weight.nested_quant_map", "double quantization"));
        if (state.nested_block == 0)
            return make_error(
                ErrorCode::kInvalidModel,
                format("{}: expected nested_blocksize, as absmax is quantized, found none", state_text.name));
        TRY(check_floats(*nested_absmax, {ceil_div(n_scales, state.nested_block)}));
        TRY(check_floats(*nested_map, {kNestedCodes}));
    } else {
        TRY(check_floats(*absmax, {n_scales}));
    }
    TRY(linear.check_all_taken(format("a matrix in {}", kind.format)));
    return packed_matrix(
        linear, state.n, state.k, codes->data,
        std::make_shared<CodebookMatrix>(kind, state, *codes, *map, *absmax, nested_absmax, nested_map));
}

// LLM.int8: a signed byte for each weight, and the largest magnitude of each row.
class Int8Matrix final : public MatrixSource {
  public:
    Int8Matrix(const Tensor& codes, const Tensor& scales) : k_(codes.shape[1]), codes_(codes.data), scales_(scales) {}

    std::string_view format() const override { return "LLM.int8"; }

    void decode(uint64_t row_begin, uint64_t n_rows, std::span<float> out) const override {
        constexpr float kPerCode = 7.874015718698502e-3f;  // 1 / 127, the library's constant
        for (uint64_t row = 0; row < n_rows; ++row) {
            const float scale = number_at(scales_, row_begin + row);
            const std::byte* from = codes_.data() + (row_begin + row) * k_;
            float* to = out.data() + row * k_;
            for (uint64_t i = 0; i < k_; ++i)
                to[i] = static_cast<float>(static_cast<int8_t>(from[i])) * scale * kPerCode;
        }
    }

  private:
    uint64_t k_;
    std::span<const std::byte> codes_;
    Tensor scales_;
};

Result<Tensor> make_int8(LinearTensors& linear) {
    TRY_ASSIGN(const Tensor* codes, linear.require("weight", "LLM.int8"));
    TRY_ASSIGN(const Tensor* scales, linear.require("SCB", "LLM.int8"));
    if (codes->dtype != DType::kI8 || codes->shape.size() != 2) return wrong_tensor(*codes, "I8 of two dimensions");
    TRY(check_floats(*scales, {codes->shape[0]}));
    // 0: row after row. Older versions wrote others, in the order of some GPUs.
    if (const Tensor* order = linear.take("weight_format")) {
        if (order->dtype != DType::kU8 || order->data.size() != 1) return wrong_tensor(*order, "one U8");
        if (order->data[0] != std::byte{0}) {
            return make_error(ErrorCode::kInvalidModel, format("tensor {}: expected 0 (rows), found {}", order->name,
                                                               std::to_integer<int>(order->data[0])));
        }
    }
    TRY(linear.check_all_taken("a matrix in LLM.int8"));
    return packed_matrix(linear, codes->shape[0], codes->shape[1], codes->data,
                         std::make_shared<Int8Matrix>(*codes, *scales));
}

}  // namespace

Result<Tensor> make_bnb_matrix(LinearTensors& linear) {
    for (const StateKind& kind : kStates) {
        if (linear.find(kind.part)) return make_codebook(linear, kind);
    }
    if (linear.find("SCB")) return make_int8(linear);
    return linear.require(kStates[0].part, kBnb).error();
}

}  // namespace lorad::model
