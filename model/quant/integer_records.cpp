#include "model/quant/integer_records.h"

#include <cstring>

#include "proto/base/check.h"

namespace lorad::model {
namespace {

constexpr uint32_t kSmallGroup = 32, kLargeGroup = 128;
constexpr uint32_t kIsBf16 = 0x80000000u, kZeroShift = 16;

}  // namespace

std::optional<gpu::WeightFormat> integer_format(uint32_t bits, uint64_t group_size, uint64_t k, DType scales) {
    if (scales != DType::kF16 && scales != DType::kBF16) return std::nullopt;
    if (group_size >= k || group_size % kLargeGroup == 0)
        return bits == 4 ? gpu::WeightFormat::kI4G128 : gpu::WeightFormat::kI8G128;
    if (group_size % kSmallGroup == 0) return bits == 4 ? gpu::WeightFormat::kI4G32 : gpu::WeightFormat::kI8G32;
    return std::nullopt;
}

uint32_t group_columns(gpu::WeightFormat format) {
    return format == gpu::WeightFormat::kI4G128 || format == gpu::WeightFormat::kI8G128 ? kLargeGroup : kSmallGroup;
}

uint32_t scale_bits(const Tensor& scales, uint64_t i) {
    uint16_t bits = 0;
    std::memcpy(&bits, scales.data.data() + i * sizeof bits, sizeof bits);
    return bits | (scales.dtype == DType::kBF16 ? kIsBf16 : 0);
}

void put_integer_record(uint64_t group, uint32_t scale_bits, int32_t zero, std::span<std::byte> records) {
    CHECK(zero >= 0 && zero <= 255);
    const uint32_t word = scale_bits | static_cast<uint32_t>(zero) << kZeroShift;
    std::memcpy(records.data() + group * sizeof word, &word, sizeof word);
}

}  // namespace lorad::model
