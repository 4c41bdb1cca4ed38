// Division that rounds up, and rounding up to a multiple. The type is that of `value`: it must hold value + divisor.
#pragma once

#include <concepts>
#include <type_traits>

namespace lorad {

template <std::unsigned_integral T>
constexpr T ceil_div(T value, std::type_identity_t<T> divisor) {
    return (value + divisor - 1) / divisor;
}

template <std::unsigned_integral T>
constexpr T round_up(T value, std::type_identity_t<T> multiple) {
    return ceil_div(value, multiple) * multiple;
}

}  // namespace lorad
