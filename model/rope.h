// The table of cos and sin that turns queries and keys.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace lorad::model {

// Angle per position of each pair of dimensions, [rotary_dim / 2], after the config's scaling. `n_positions_max` is the context
// served: longrope takes its long factors when that is more than the original context, for short texts too, so that a text's
// cache stays valid while it grows.
std::vector<double> rope_frequencies(const RopeConfig& rope, uint32_t n_positions_max);

// [n_positions][rotary_dim / 2][2]: cos and sin, times the attention factor.
std::vector<float> rope_table(const RopeConfig& rope, uint32_t n_positions);

}  // namespace lorad::model
