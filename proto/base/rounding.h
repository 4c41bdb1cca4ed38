// Whole numbers of things that do not divide. No result may exceed what the type holds.
#pragma once

#include <cstdint>

namespace lorad {

constexpr uint32_t ceil_div(uint32_t value, uint32_t divisor) { return (value + divisor - 1) / divisor; }
constexpr uint32_t round_up(uint32_t value, uint32_t multiple) { return ceil_div(value, multiple) * multiple; }

}  // namespace lorad
