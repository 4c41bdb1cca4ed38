#include "model/quant/compressed.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "model/quant/fp8.h"
#include "model/quant/integer_records.h"
#include "model/quant/matrix_source.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

constexpr std::string_view kCompressedTensors = "compressed-tensors";

// Everything of a matrix [n][k]. Codes in words are the values and half the range; so are zero points in words, [words
// of n][groups].
struct RowCodes {
    WeightScheme scheme;
    uint64_t n = 0, k = 0, n_groups = 1, group_size = 0;
    std::span<const std::byte> codes;
    Tensor scales;
    std::optional<Tensor> zeros;
    std::vector<uint32_t> group_of;  // [k], where groups have no order; else empty
};

class RowCodeMatrix final : public MatrixSource {
  public:
    explicit RowCodeMatrix(RowCodes codes) : c_(std::move(codes)), row_words_(words_of(c_.k, c_.scheme.bits)) {}

    std::string_view format() const override {
        if (!c_.scheme.is_packed) return "int8";
        return c_.scheme.bits == 4 ? "W4A16" : "W8A16";
    }

    void decode(uint64_t row_begin, uint64_t n_rows, std::span<float> out) const override {
        if (!c_.scheme.is_packed)
            decode_rows_of(row_begin, n_rows, out, [&](uint64_t row, uint64_t i) {
                return int32_t{static_cast<int8_t>(c_.codes[row * c_.k + i])};
            });
        else if (c_.scheme.bits == 4)
            decode_rows_of(row_begin, n_rows, out, [&](uint64_t row, uint64_t i) { return code_in_words<4>(row, i); });
        else
            decode_rows_of(row_begin, n_rows, out, [&](uint64_t row, uint64_t i) { return code_in_words<8>(row, i); });
    }

    std::optional<gpu::WeightFormat> device_format() const override {
        if (!c_.group_of.empty()) return std::nullopt;
        return integer_format(c_.scheme.is_packed ? c_.scheme.bits : 8, c_.group_size, c_.k, c_.scales.dtype);
    }
    void pack(uint64_t row_begin, uint64_t n_rows, std::span<uint8_t> codes,
              std::span<std::byte> records) const override {
        const gpu::WeightFormat format = *device_format();
        const uint64_t record_bytes = records.size() / n_rows, step = group_columns(format);
        const int32_t middle = c_.scheme.is_packed ? 0 : 128;  // signed bytes become codes from 0 on
        for (uint64_t row = row_begin; row < row_begin + n_rows; ++row) {
            uint8_t* to = codes.data() + (row - row_begin) * c_.k;
            for (uint64_t i = 0; i < c_.k; ++i) {
                const int32_t code = !c_.scheme.is_packed  ? int32_t{static_cast<int8_t>(c_.codes[row * c_.k + i])}
                                     : c_.scheme.bits == 4 ? code_in_words<4>(row, i)
                                                           : code_in_words<8>(row, i);
                to[i] = static_cast<uint8_t>(code + middle);
            }
            for (uint64_t i = 0; i < c_.k; i += step) {
                const uint64_t g = group_of(i), scale = c_.scales.n_elements() == 1 ? 0 : row * c_.n_groups + g;
                put_integer_record(i / step, scale_bits(c_.scales, scale), zero_of(row, g) + middle,
                                   records.subspan((row - row_begin) * record_bytes, record_bytes));
            }
        }
    }

  private:
    uint64_t group_of(uint64_t i) const { return c_.group_of.empty() ? i / c_.group_size : c_.group_of[i]; }
    uint32_t mask() const { return (1u << c_.scheme.bits) - 1; }

    template <uint32_t kBits>
    int32_t code_in_words(uint64_t row, uint64_t i) const {
        constexpr uint32_t kPerWord = kWordBits / kBits;
        const uint32_t word = word_at(c_.codes, row * row_words_ + i / kPerWord);
        return static_cast<int32_t>((word >> (i % kPerWord * kBits)) & ((1u << kBits) - 1));
    }

    template <typename CodeAt>
    void decode_rows_of(uint64_t row_begin, uint64_t n_rows, std::span<float> out, CodeAt code_at) const {
        std::vector<float> scale(c_.n_groups);
        std::vector<int32_t> zero(c_.n_groups);  // in the codes' numbering
        for (uint64_t row = row_begin; row < row_begin + n_rows; ++row) {
            for (uint64_t g = 0; g < c_.n_groups; ++g) {
                scale[g] = number_at(c_.scales, c_.scales.n_elements() == 1 ? 0 : row * c_.n_groups + g);
                zero[g] = zero_of(row, g);
            }
            float* to = out.data() + (row - row_begin) * c_.k;
            for (uint64_t i = 0; i < c_.k;) {
                // Inputs that follow each other in a group.
                const uint64_t g = group_of(i);
                const uint64_t end =
                    c_.group_of.empty() ? std::min(c_.k, (i / c_.group_size + 1) * c_.group_size) : i + 1;
                const int32_t z = zero[g];
                const float s = scale[g];
                for (; i < end; ++i) to[i] = static_cast<float>(code_at(row, i) - z) * s;
            }
        }
    }

    int32_t zero_of(uint64_t row, uint64_t g) const {
        if (!c_.scheme.is_packed) return c_.zeros ? static_cast<int8_t>(c_.zeros->data[row * c_.n_groups + g]) : 0;
        if (!c_.zeros) return 1 << (c_.scheme.bits - 1);
        const uint32_t per_word = kWordBits / c_.scheme.bits;
        return static_cast<int32_t>(
            (word_at(c_.zeros->data, row / per_word * c_.n_groups + g) >> (row % per_word * c_.scheme.bits)) & mask());
    }

    RowCodes c_;
    uint64_t row_words_;  // of a row's codes in words
};

// weight_shape: the sizes of the matrix.
Result<std::pair<uint64_t, uint64_t>> read_shape(const Tensor& tensor) {
    if (tensor.dtype != DType::kI64 || tensor.shape != std::vector<uint64_t>{2}) return wrong_tensor(tensor, "I64 [2]");
    int64_t sizes[2];
    std::memcpy(sizes, tensor.data.data(), sizeof sizes);
    for (const int64_t size : sizes) {
        if (size < 1 || size > INT32_MAX)
            return make_error(ErrorCode::kInvalidModel, format("tensor {}: expected sizes from 1 on, found {} and {}",
                                                               tensor.name, sizes[0], sizes[1]));
    }
    return std::pair(static_cast<uint64_t>(sizes[0]), static_cast<uint64_t>(sizes[1]));
}

Status read_codes(LinearTensors& linear, RowCodes& c) {
    if (!c.scheme.is_packed) {
        TRY_ASSIGN(const Tensor* weight, linear.require("weight", kCompressedTensors));
        if (weight->dtype != DType::kI8 || weight->shape.size() != 2 || weight->data.empty())
            return wrong_tensor(*weight, "I8 of two dimensions");
        c.n = weight->shape[0];
        c.k = weight->shape[1];
        c.codes = weight->data;
        return ok_status();
    }
    TRY_ASSIGN(const Tensor* words, linear.require("weight_packed", kCompressedTensors));
    TRY_ASSIGN(const Tensor* shape, linear.require("weight_shape", kCompressedTensors));
    TRY_ASSIGN(const auto sizes, read_shape(*shape));
    std::tie(c.n, c.k) = sizes;
    const std::vector<uint64_t> expected{c.n, words_of(c.k, c.scheme.bits)};
    if (words->dtype != DType::kI32 || words->shape != expected) {
        return wrong_tensor(*words, format("I32 {}, {} bits for each of the {} that weight_shape tells",
                                           shape_text(expected), c.scheme.bits, shape_text(std::array{c.n, c.k})));
    }
    c.codes = words->data;
    return ok_status();
}

Status read_scales(LinearTensors& linear, RowCodes& c) {
    const WeightScheme& scheme = c.scheme;
    c.group_size = scheme.strategy == ScaleStrategy::kGroup ? scheme.group_size : c.k;
    c.n_groups = ceil_div(c.k, c.group_size);
    if (c.k > c.group_size && c.k % c.group_size != 0) {
        return make_error(
            ErrorCode::kInvalidModel,
            format("tensor {}.weight_scale: expected groups that divide its {} inputs, found group_size {}",
                   linear.name(), c.k, c.group_size));
    }
    TRY_ASSIGN(const Tensor* scales, linear.require("weight_scale", kCompressedTensors));
    if (scheme.strategy == ScaleStrategy::kTensor) {
        TRY(check_one_float(*scales));
    } else {
        TRY(check_floats(*scales, {c.n, c.n_groups}));
    }
    c.scales = *scales;
    if (!scheme.symmetric) TRY(linear.require("weight_zero_point", describe(scheme)));
    if (const Tensor* zeros = linear.take("weight_zero_point")) {
        if (scheme.strategy == ScaleStrategy::kTensor)
            return wrong_tensor(*zeros, "no zero points where a matrix has one scale");
        if (scheme.is_packed)
            TRY(check_tensor(*zeros, DType::kI32, {words_of(c.n, scheme.bits), c.n_groups}));
        else
            TRY(check_tensor(*zeros, DType::kI8, {c.n, c.n_groups}));
        c.zeros = *zeros;
    }
    return ok_status();
}

// Groups of inputs in an order of their own ("actorder": "group").
Status read_order(LinearTensors& linear, RowCodes& c) {
    if (c.scheme.has_order) TRY(linear.require("weight_g_idx", "actorder \"group\""));
    const Tensor* tensor = linear.take("weight_g_idx");
    if (!tensor) return ok_status();
    TRY(check_tensor(*tensor, DType::kI32, {c.k}));
    constexpr uint32_t kNoOrder = ~0u;  // -1, as the library fills an index that it does not use
    for (uint64_t i = 0; i < c.k; ++i) {
        if (word_at(tensor->data, i) == kNoOrder) return ok_status();
    }
    TRY_ASSIGN(c.group_of, input_groups(*tensor, c.k, c.n_groups));
    return ok_status();
}

Result<Tensor> make_integers(LinearTensors& linear, const WeightScheme& scheme) {
    RowCodes c{.scheme = scheme, .codes = {}, .scales = {}, .zeros = {}, .group_of = {}};
    TRY(read_codes(linear, c));
    TRY(read_scales(linear, c));
    TRY(read_order(linear, c));
    TRY(linear.check_all_taken(describe(scheme)));
    const uint64_t n = c.n, k = c.k;
    const auto codes = c.codes;
    return packed_matrix(linear, n, k, codes, std::make_shared<RowCodeMatrix>(std::move(c)));
}

}  // namespace

Result<Tensor> make_compressed_matrix(const LinearTensors& linear, std::span<const WeightScheme> schemes) {
    CHECK(!schemes.empty());
    std::optional<Error> first;
    for (const WeightScheme& scheme : schemes) {
        LinearTensors tried = linear;
        auto matrix = scheme.is_float ? make_fp8_matrix(tried, {.strategy = scheme.strategy,
                                                                .block_rows = scheme.block_rows,
                                                                .block_columns = scheme.block_columns})
                                      : make_integers(tried, scheme);
        if (matrix.ok()) return matrix;
        if (!first) first = matrix.error();
    }
    if (schemes.size() > 1)
        first->message += format("; nor do its tensors fit another of the {} groups of the config", schemes.size());
    return *first;
}

}  // namespace lorad::model
