// Whole numbers of things that do not divide. The type is that of `value`: it must hold the divisor, and their sum.
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
