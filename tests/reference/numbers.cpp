#include "tests/reference/numbers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace lorad::reference {

uint16_t to_f16(float value) {
    uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    if (std::isnan(value)) return sign | 0x7e00;
    double magnitude = std::fabs(static_cast<double>(value));
    if (magnitude >= 65520.0) return sign | 0x7c00;
    // nearbyint rounds to even in units of the last place, which do not shrink below 2^-24.
    int exponent = magnitude == 0 ? -14 : std::max(std::ilogb(magnitude), -14);
    double steps = std::nearbyint(std::ldexp(magnitude, 10 - exponent));
    double rounded_value = std::ldexp(steps, exponent - 10);
    if (rounded_value >= 65536.0) return sign | 0x7c00;
    if (rounded_value < std::ldexp(1.0, -14)) return sign | static_cast<uint16_t>(std::ldexp(rounded_value, 24));
    int e = std::ilogb(rounded_value);
    auto fraction = static_cast<uint16_t>(std::ldexp(rounded_value, 10 - e) - 1024.0);
    return static_cast<uint16_t>(sign | ((e + 15) << 10) | fraction);
}

float from_f16(uint16_t bits) {
    int e = (bits >> 10) & 31;
    int fraction = bits & 1023;
    double magnitude;
    if (e == 31) {
        magnitude = fraction != 0 ? NAN : INFINITY;
    } else if (e == 0) {
        magnitude = std::ldexp(fraction, -24);
    } else {
        magnitude = std::ldexp(1024 + fraction, e - 25);
    }
    return static_cast<float>((bits & 0x8000) != 0 ? -magnitude : magnitude);
}

uint16_t to_bf16(float value) {
    uint32_t bits = std::bit_cast<uint32_t>(value);
    if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
    uint32_t low = bits & 0xffff;
    uint32_t high = bits >> 16;
    if (low > 0x8000 || (low == 0x8000 && (high & 1) != 0)) high++;
    return static_cast<uint16_t>(high);
}

float from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

float rounded(float value, Type type) {
    if (type == Type::kF16) return from_f16(to_f16(value));
    if (type == Type::kBf16) return from_bf16(to_bf16(value));
    return value;
}

double unit_roundoff(Type type) { return std::ldexp(1.0, type == Type::kF32 ? -24 : type == Type::kF16 ? -11 : -8); }

std::vector<float> random_values(size_t n, Type type, std::mt19937& random, float bound) {
    std::uniform_real_distribution<float> distribution(-bound, bound);
    std::vector<float> values(n);
    for (float& value : values) value = rounded(distribution(random), type);
    return values;
}

std::vector<std::byte> encode(const std::vector<float>& values, size_t n_columns, size_t stride, Type type) {
    size_t n_rows = n_columns == 0 ? 0 : values.size() / n_columns;
    size_t element = type == Type::kF32 ? 4 : 2;
    std::vector<std::byte> bytes(n_rows * stride * element);
    for (size_t row = 0; row < n_rows; row++) {
        for (size_t column = 0; column < n_columns; column++) {
            float value = values[row * n_columns + column];
            std::byte* at = bytes.data() + (row * stride + column) * element;
            if (type == Type::kF32) {
                std::memcpy(at, &value, 4);
            } else {
                uint16_t bits = type == Type::kF16 ? to_f16(value) : to_bf16(value);
                std::memcpy(at, &bits, 2);
            }
        }
    }
    return bytes;
}

std::vector<float> decode(const std::vector<std::byte>& bytes, Type type) {
    size_t element = type == Type::kF32 ? 4 : 2;
    std::vector<float> values(bytes.size() / element);
    for (size_t i = 0; i < values.size(); i++) {
        if (type == Type::kF32) {
            std::memcpy(&values[i], bytes.data() + i * 4, 4);
        } else {
            uint16_t bits;
            std::memcpy(&bits, bytes.data() + i * 2, 2);
            values[i] = type == Type::kF16 ? from_f16(bits) : from_bf16(bits);
        }
    }
    return values;
}

}  // namespace lorad::reference
