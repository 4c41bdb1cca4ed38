// The table of cos and sin that turns queries and keys.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config/config.h"

namespace lorad::model {

// Angle per position of each pair of dimensions, [rotary_dim / 2], after the config's scaling. is_long: of a text that
// is longer than short_text_tokens(), which matters to longrope alone.
std::vector<double> rope_frequencies(const RopeConfig& rope, bool is_long = false);

// longrope turns a text by its short factors while it fits the original context, and all of it, from its first token
// on, by the long ones when it has grown beyond: its keys are then computed again. The most tokens of a short text; 0
// where texts of up to n_positions are all turned alike.
uint32_t short_text_tokens(const RopeConfig& rope, uint32_t n_positions);

// [turn][rotary_dim / 2][2]: cos and sin, times the attention factor. Position p of a long text is turn
// short_text_tokens() + p, that of any other turn p.
std::vector<float> rope_table(const RopeConfig& rope, uint32_t n_positions);

}  // namespace lorad::model
