#include "model/quant/matrix_decoder.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "model/quant/matrix_source.h"
#include "proto/base/check.h"
#include "proto/base/format.h"
#include "proto/base/rounding.h"
#include "proto/base/thread.h"

namespace lorad::model {
namespace {

constexpr uint32_t kDecodingThreadsMax = 16;
// The numbers that one thread decodes at a time: they stay in the processor's cache.
constexpr uint64_t kNumbersAtATime = uint64_t{1} << 16;

uint16_t narrow_to_bf16(uint32_t bits) {
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);  // NaN stays one
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

uint16_t narrow_to_f16(uint32_t bits) {
    // 2^-14; 65520, which rounds to infinity
    constexpr uint32_t kInfinity = 0x7c00, kSmallestNormal = 113u << 23, kBeyond = 0x477ff000;
    const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return sign | 0x7e00;
    if (magnitude >= kBeyond) return static_cast<uint16_t>(sign | kInfinity);
    if (magnitude < kSmallestNormal) {
        // The processor's own addition rounds to steps of 2^-24, those of numbers near 1/2.
        const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
        return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f)));
    }
    const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
    return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

uint16_t narrow_bits(uint32_t bits, gpu::ScalarType type) {
    return type == gpu::ScalarType::kF16 ? narrow_to_f16(bits) : narrow_to_bf16(bits);
}

bool is_infinite(uint16_t bits, gpu::ScalarType type) {
    return (bits & 0x7fff) == (type == gpu::ScalarType::kF16 ? 0x7c00 : 0x7f80);
}

void widen_rows(const Tensor& tensor, uint64_t row_begin, std::span<float> out) {
    const uint64_t first = row_begin * tensor.shape[1];
    if (tensor.dtype == DType::kF32) {
        std::memcpy(out.data(), tensor.data.data() + first * sizeof(float), out.size_bytes());
        return;
    }
    for (size_t i = 0; i < out.size(); ++i) out[i] = number_at(tensor, first + i);
}

}  // namespace

bool narrow(std::span<const float> from, gpu::ScalarType type, std::byte* out) {
    if (type == gpu::ScalarType::kF32) {
        std::memcpy(out, from.data(), from.size_bytes());
        return true;
    }
    bool all_fit = true;
    for (size_t i = 0; i < from.size(); ++i) {
        const uint16_t bits = narrow_bits(std::bit_cast<uint32_t>(from[i]), type);
        all_fit = all_fit && !(is_infinite(bits, type) && std::isfinite(from[i]));
        std::memcpy(out + i * sizeof bits, &bits, sizeof bits);
    }
    return all_fit;
}

void NumberCheck::look_at(std::span<const float> numbers) {
    // the smallest that round to infinity
    constexpr uint32_t kInfinity = 0x7f800000, kBeyondF16 = 0x477ff000, kBeyondBf16 = 0x7f7f8000;
    const uint32_t beyond = type_ == gpu::ScalarType::kF16    ? kBeyondF16
                            : type_ == gpu::ScalarType::kBf16 ? kBeyondBf16
                                                              : kInfinity;
    uint32_t largest = 0;
    for (const float number : numbers) largest = std::max(largest, std::bit_cast<uint32_t>(number) & 0x7fffffff);
    if (largest >= kInfinity)
        all_finite_ = false;
    else if (largest >= beyond)
        all_fit_ = false;
}

Status NumberCheck::verdict(const Tensor& tensor, std::string_view format) const {
    if (!all_finite_) {
        return make_error(ErrorCode::kInvalidModel,
                          lorad::format("tensor {}: expected finite numbers, found infinite ones or NaN in its {}",
                                        tensor.name, format));
    }
    if (all_fit_) return ok_status();
    return make_error(ErrorCode::kInvalidModel,
                      lorad::format("tensor {}: expected numbers that {} holds, found larger ones; load the model with "
                                    "--dtype bfloat16 or float32",
                                    tensor.name, type_ == gpu::ScalarType::kF16 ? "float16" : "bfloat16"));
}

void for_pieces(uint64_t n, const std::function<void(uint64_t piece)>& work) {
    std::atomic<uint64_t> next{0};
    const auto work_on = [&] {
        for (uint64_t piece = next++; piece < n; piece = next++) work(piece);
    };
    run_on_threads(std::min<uint64_t>(n, kDecodingThreadsMax), work_on);
}

Status decode_rows(const Tensor& tensor, uint64_t row_begin, uint64_t n_rows, gpu::ScalarType type,
                   std::span<std::byte> out) {
    CHECK(tensor.shape.size() == 2 && row_begin + n_rows <= tensor.shape[0]);
    const uint64_t n_columns = tensor.shape[1];
    CHECK(out.size() == n_rows * n_columns * gpu::bytes_of(type));
    const uint64_t rows_at_a_time =
        std::clamp<uint64_t>(kNumbersAtATime / std::max<uint64_t>(n_columns, 1), 1, std::max<uint64_t>(n_rows, 1));
    const uint64_t n_pieces = ceil_div(n_rows, rows_at_a_time);
    NumberCheck check(type);
    for_pieces(n_pieces, [&](uint64_t piece) {
        const uint64_t row = piece * rows_at_a_time, n = std::min(rows_at_a_time, n_rows - row);
        std::vector<float> numbers(n * n_columns);
        if (tensor.source) {
            tensor.source->decode(row_begin + row, n, numbers);
            check.look_at(numbers);
        } else {
            widen_rows(tensor, row_begin + row, numbers);
        }
        if (!narrow(numbers, type, out.data() + row * n_columns * gpu::bytes_of(type))) check.found_beyond();
    });
    return check.verdict(tensor, tensor.source ? tensor.source->format() : std::string_view());
}

}  // namespace lorad::model
