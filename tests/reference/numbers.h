// Random numbers and the three weight types, written independently of the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace lorad::reference {

// 0 f32, 1 f16, 2 bf16, as everywhere on the device.
enum class Type : uint32_t { kF32 = 0, kF16 = 1, kBf16 = 2 };
inline constexpr Type kTypes[] = {Type::kF32, Type::kF16, Type::kBf16};

uint16_t to_f16(float value);  // round to nearest even
float from_f16(uint16_t bits);
uint16_t to_bf16(float value);
float from_bf16(uint16_t bits);

float rounded(float value, Type type);
// Half the distance between neighbouring numbers near 1.
double unit_roundoff(Type type);

// Uniform in -bound..bound, each value exact in `type`.
std::vector<float> random_values(size_t n, Type type, std::mt19937& random, float bound = 1.0f);

// Rows of n_columns values in `type`, each row `stride` elements long; the gap is zero.
std::vector<std::byte> encode(const std::vector<float>& values, size_t n_columns, size_t stride, Type type);
std::vector<float> decode(const std::vector<std::byte>& bytes, Type type);

}  // namespace lorad::reference
