#include "model/quant/fp8.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "model/quant/matrix_source.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

constexpr std::string_view kFp8 = "FP8";

std::array<float, 256> all_e4m3_values() {
    std::array<float, 256> values{};
    for (uint32_t code = 0; code < values.size(); ++code) values[code] = e4m3_value(static_cast<uint8_t>(code));
    return values;
}

class Fp8Matrix final : public MatrixSource {
  public:
    // A scale for each block_rows x block_columns, [row blocks][column blocks].
    Fp8Matrix(const Tensor& codes, const Tensor& scales, uint64_t block_rows, uint64_t block_columns)
        : k_(codes.shape[1]),
          block_rows_(block_rows),
          block_columns_(block_columns),
          codes_(codes.data),
          scales_(scales) {}

    std::string_view format() const override { return kFp8; }

    void decode(uint64_t row_begin, uint64_t n_rows, std::span<float> out) const override {
        static const std::array<float, 256> kValues = all_e4m3_values();
        const uint64_t n_column_blocks = ceil_div(k_, block_columns_);
        for (uint64_t row = row_begin; row < row_begin + n_rows; ++row) {
            const std::byte* from = codes_.data() + row * k_;
            float* to = out.data() + (row - row_begin) * k_;
            for (uint64_t block = 0; block < n_column_blocks; ++block) {
                const float scale = number_at(scales_, row / block_rows_ * n_column_blocks + block);
                const uint64_t end = std::min(k_, (block + 1) * block_columns_);
                for (uint64_t i = block * block_columns_; i < end; ++i)
                    to[i] = kValues[std::to_integer<uint8_t>(from[i])] * scale;
            }
        }
    }

    std::optional<gpu::WeightFormat> device_format() const override {
        return block_columns_ >= k_ || block_columns_ % kScaleColumns == 0 ? std::optional(gpu::WeightFormat::kFP8)
                                                                           : std::nullopt;
    }
    void pack(uint64_t row_begin, uint64_t n_rows, std::span<uint8_t> codes,
              std::span<std::byte> records) const override {
        const uint64_t n_column_blocks = ceil_div(k_, block_columns_), record_bytes = records.size() / n_rows;
        std::memcpy(codes.data(), codes_.data() + row_begin * k_, n_rows * k_);
        for (uint64_t r = 0; r < n_rows; ++r) {
            for (uint64_t i = 0; i < k_; i += kScaleColumns) {
                const float scale =
                    number_at(scales_, (row_begin + r) / block_rows_ * n_column_blocks + i / block_columns_);
                std::memcpy(records.data() + r * record_bytes + i / kScaleColumns * sizeof scale, &scale, sizeof scale);
            }
        }
    }

  private:
    static constexpr uint64_t kScaleColumns = 128;  // of gpu::WeightFormat::kFP8
    uint64_t k_, block_rows_, block_columns_;
    std::span<const std::byte> codes_;
    Tensor scales_;
};

}  // namespace

float e4m3_value(uint8_t code) {
    constexpr uint32_t kExponentBias = 7, kMantissaBits = 3, kNaN = 0x7f;
    const uint32_t magnitude = code & 0x7fu, exponent = magnitude >> kMantissaBits, mantissa = magnitude & 7;
    float value = 0.0f;
    if (magnitude == kNaN)
        value = std::numeric_limits<float>::quiet_NaN();
    else if (exponent == 0)
        value = std::ldexp(static_cast<float>(mantissa), -9);  // subnormal: steps of 2^-9
    else
        value = std::ldexp(static_cast<float>(8 + mantissa),
                           static_cast<int>(exponent) - static_cast<int>(kExponentBias + kMantissaBits));
    return (code & 0x80) != 0 ? -value : value;
}

Result<Tensor> make_fp8_matrix(LinearTensors& linear, const Fp8Scales& how) {
    TRY_ASSIGN(const Tensor* codes, linear.require("weight", kFp8));
    TRY_ASSIGN(const Tensor* scales, linear.require(how.part, kFp8));
    if (codes->dtype != DType::kF8E4M3 || codes->shape.size() != 2 || codes->data.empty())
        return wrong_tensor(*codes, "F8_E4M3 of two dimensions");
    const uint64_t n = codes->shape[0], k = codes->shape[1];
    uint64_t block_rows = n, block_columns = k;
    switch (how.strategy) {
        case ScaleStrategy::kTensor: TRY(check_one_float(*scales)); break;
        case ScaleStrategy::kChannel:
            if (scales->shape.size() != 1)
                TRY(check_floats(*scales, {n, 1}));
            else
                TRY(check_floats(*scales, {n}));
            block_rows = 1;
            break;
        case ScaleStrategy::kBlock:
            block_rows = how.block_rows;
            block_columns = how.block_columns;
            TRY(check_floats(*scales, {ceil_div(n, block_rows), ceil_div(k, block_columns)}));
            break;
        case ScaleStrategy::kGroup:
            return make_error(
                ErrorCode::kInvalidModel,
                format("tensor {}: expected one scale, one a row or blocks for FP8, found groups", codes->name));
    }
    TRY(linear.check_all_taken("a matrix in FP8"));
    return packed_matrix(linear, n, k, codes->data,
                         std::make_shared<Fp8Matrix>(*codes, *scales, block_rows, block_columns));
}

Result<Tensor> make_fp8_matrix(LinearTensors& linear, const QuantizationConfig& config) {
    if (config.block_rows != 0) {
        return make_fp8_matrix(linear, {.strategy = ScaleStrategy::kBlock,
                                        .block_rows = config.block_rows,
                                        .block_columns = config.block_columns,
                                        .part = "weight_scale_inv"});
    }
    // transformers writes one weight_scale_inv for a matrix, others weight_scale.
    const std::string_view part = linear.find("weight_scale_inv") ? "weight_scale_inv" : "weight_scale";
    const Tensor* scale = linear.find(part);
    const bool is_of_rows = scale && is_weight_type(scale->dtype) && scale->n_elements() != 1;
    return make_fp8_matrix(linear,
                           {.strategy = is_of_rows ? ScaleStrategy::kChannel : ScaleStrategy::kTensor, .part = part});
}

}  // namespace lorad::model
