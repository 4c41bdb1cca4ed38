#include "gpu/kernels/scalar_type.h"

#include <algorithm>
#include <cmath>

namespace lorad::gpu {

float decode16(uint16_t bits, ScalarType type) {
    const bool bf16 = type == ScalarType::kBf16;
    const int mantissa_bits = bf16 ? 7 : 10, exponent_mask = bf16 ? 255 : 31, bias = bf16 ? 127 : 15;
    const int exponent = (bits >> mantissa_bits) & exponent_mask, mantissa = bits & ((1 << mantissa_bits) - 1);
    if (exponent == exponent_mask) return NAN;
    const float value = std::ldexp(static_cast<float>(mantissa + (exponent != 0 ? 1 << mantissa_bits : 0)),
                                   std::max(exponent, 1) - bias - mantissa_bits);
    return (bits & 0x8000) != 0 ? -value : value;
}

}  // namespace lorad::gpu
