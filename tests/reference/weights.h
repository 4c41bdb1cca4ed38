// Adapters made part of a weight matrix, in double precision.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "tests/reference/transformer.h"

namespace lorad::reference {

// One adapter in a merge; gain and bias empty: none.
struct MergeTerm {
    LoraPair pair;
    std::span<const float> gain, bias;
    double factor = 1;
};

// w + sum_i factor_i ((gain_i - 1) w + gain_i scale_i B_i A_i), row-major [n][k].
Vector merged(std::span<const float> w, size_t k, std::span<const MergeTerm> terms);
// bias + sum_i factor_i bias_i; an empty base is zero.
Vector merged_bias(std::span<const float> bias, size_t n, std::span<const MergeTerm> terms);
// magnitude[n] / || w[n] + scale (B A)[n] ||; 0 for a row of zeros.
Vector gains(std::span<const float> magnitude, std::span<const float> w, size_t k, const LoraPair& pair);

}  // namespace lorad::reference
