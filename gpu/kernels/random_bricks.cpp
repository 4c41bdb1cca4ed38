#include "gpu/kernels/random_bricks.h"

#include <bit>
#include <cstring>

#include "gpu/kernels/self_test.h"

namespace lorad::gpu::self_test {
namespace {

// Scales between 2^-4 and 2^-3, with a mantissa.
uint16_t small_half(std::mt19937& random) { return static_cast<uint16_t>(0x2c00u | (random() & 0x3ff)); }

void put(std::span<std::byte> to, size_t at, uint32_t value, size_t n_bytes) {
    std::memcpy(to.data() + at, &value, n_bytes);
}

// What the records have beside bits that may be any.
void put_scales(WeightFormat format, std::span<std::byte> record, std::span<std::byte> second, std::mt19937& random) {
    switch (format) {
        case WeightFormat::kQ8_0:
        case WeightFormat::kQ4_0:
        case WeightFormat::kQ4_1:
        case WeightFormat::kQ5_0:
        case WeightFormat::kQ5_1:
        case WeightFormat::kIQ4_NL:
            for (size_t i = 0; i < record.size(); i += 2) put(record, i, small_half(random), 2);
            return;
        case WeightFormat::kQ4_K:
        case WeightFormat::kQ5_K:
            for (size_t i = 0; i < 4; i += 2) put(record, i, small_half(random), 2);
            return;
        case WeightFormat::kQ6_K: return put(second, 0, small_half(random), 2);
        case WeightFormat::kIQ4_XS: return put(record, 0, small_half(random), 2);
        case WeightFormat::kMXFP4:
            // some of the two smallest, whose scales are subnormal
            for (std::byte& e : record)
                e = static_cast<std::byte>(random() % 16 == 0 ? random() % 2 : 120 + random() % 8);
            return;
        case WeightFormat::kTable:
        case WeightFormat::kFP8:
            for (size_t i = 0; i < record.size(); i += 4)
                put(record, i, std::bit_cast<uint32_t>(0.25f) | (random() & 0x7fffff), 4);
            return;
        default:
            // f16, or bf16 between 2^-4 and 2^-3
            for (size_t i = 0; i < record.size(); i += 4) {
                const uint32_t scale = random() % 2 == 0
                                           ? small_half(random)
                                           : 0x80000000u | 0x3d80u | (static_cast<uint32_t>(random()) & 0x7fu);
                put(record, i, scale | (static_cast<uint32_t>(random()) % 16) << 16, 4);
            }
    }
}

}  // namespace

void fill_part(WeightFormat of, std::span<std::byte> part, std::mt19937& random) {
    const uint32_t format = number_of(of);
    fill_random(part.first(kPartAlign), ScalarType::kF32, random);  // the table among it
    const uint32_t first = record_bytes(format), second = second_record_bytes(format);
    for (size_t brick = kPartAlign; brick < part.size(); brick += brick_bytes(format)) {
        const std::span<std::byte> bytes = part.subspan(brick, brick_bytes(format));
        for (std::byte& byte : bytes) {
            byte = static_cast<std::byte>(random());
            if (format == kWeightsFP8 && (byte & std::byte{0x7f}) == std::byte{0x7f}) byte = std::byte{0};  // no NaN
        }
        for (uint32_t row = 0; row < kBrickRows; ++row) {
            const uint32_t records = record_offset(format);
            put_scales(of, bytes.subspan(records + row * first, first),
                       bytes.subspan(records + kBrickRows * first + row * second, second), random);
        }
    }
}

}  // namespace lorad::gpu::self_test
