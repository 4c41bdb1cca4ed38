// The types of numbers in matrices and activations.
#pragma once

#include <cstdint>

namespace lorad::gpu {

enum class ScalarType : uint32_t { kF32 = 0, kF16 = 1, kBf16 = 2 };
constexpr uint32_t bytes_of(ScalarType type) { return type == ScalarType::kF32 ? 4 : 2; }
// The value of a 16-bit number; NaN for what is no number.
float decode16(uint16_t bits, ScalarType type);

}  // namespace lorad::gpu
