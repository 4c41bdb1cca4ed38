#include "model/config/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lorad::model {
namespace {

// Long waves (beyond the trained context) are slowed down by the factor, short ones kept, those between blended.
double llama3_frequency(const RopeConfig& rope, double frequency) {
    const double wavelength = 2.0 * std::numbers::pi / frequency;
    const double original = rope.original_max_positions;
    if (wavelength < original / rope.high_freq_factor) return frequency;
    if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
    const double blend =
        (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
    return (1.0 - blend) * frequency / rope.factor + blend * frequency;
}

// The dimension whose wave turns n_turns times within the original context, as a real number.
double yarn_dimension(const RopeConfig& rope, double n_turns) {
    return rope.rotary_dim * std::log(rope.original_max_positions / (n_turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(rope.theta));
}

// Dimensions below `low` keep their frequency, those above `high` are slowed down, with a ramp between.
void scale_yarn(const RopeConfig& rope, std::vector<double>& frequencies) {
    double low = yarn_dimension(rope, rope.beta_fast), high = yarn_dimension(rope, rope.beta_slow);
    if (rope.truncate) {
        low = std::floor(low);
        high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, rope.rotary_dim - 1.0);
    if (low == high) high += 0.001;
    for (size_t i = 0; i < frequencies.size(); ++i) {
        const double slowed = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
        frequencies[i] = frequencies[i] / rope.factor * slowed + frequencies[i] * (1.0 - slowed);
    }
}

}  // namespace

std::vector<double> rope_frequencies(const RopeConfig& rope, bool is_long) {
    std::vector<double> frequencies(rope.rotary_dim / 2);
    for (size_t i = 0; i < frequencies.size(); ++i) {
        frequencies[i] = std::pow(
            rope.theta, -2.0 * static_cast<double>(i) / (rope.exponent_dim != 0 ? rope.exponent_dim : rope.rotary_dim));
        if (!rope.frequency_factors.empty()) frequencies[i] /= rope.frequency_factors[i];
    }
    switch (rope.type) {
        case RopeType::kDefault:
        case RopeType::kProportional: break;
        case RopeType::kLinear:
            for (double& frequency : frequencies) frequency /= rope.factor;
            break;
        case RopeType::kLlama3:
            for (double& frequency : frequencies) frequency = llama3_frequency(rope, frequency);
            break;
        case RopeType::kYarn: scale_yarn(rope, frequencies); break;
        case RopeType::kLongRope: {
            const auto& factors = is_long ? rope.long_factors : rope.short_factors;
            for (size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= factors[i];
            break;
        }
    }
    return frequencies;
}

uint32_t short_text_tokens(const RopeConfig& rope, uint32_t n_positions) {
    return rope.type == RopeType::kLongRope && n_positions > rope.original_max_positions ? rope.original_max_positions
                                                                                         : 0;
}

std::vector<float> rope_table(const RopeConfig& rope, uint32_t n_positions) {
    std::vector<float> table;
    const uint32_t n_short = short_text_tokens(rope, n_positions);
    table.reserve((size_t{n_short} + n_positions) * rope.rotary_dim);
    const auto add = [&](uint32_t n, bool is_long) {
        const std::vector<double> frequencies = rope_frequencies(rope, is_long);
        for (uint32_t position = 0; position < n; ++position) {
            for (const double frequency : frequencies) {
                // The reference rounds the frequency and the angle to f32; at large angles that rounding is what the
                // model saw.
                const float angle = static_cast<float>(position) * static_cast<float>(frequency);
                table.push_back(static_cast<float>(std::cos(static_cast<double>(angle)) * rope.attention_factor));
                table.push_back(static_cast<float>(std::sin(static_cast<double>(angle)) * rope.attention_factor));
            }
        }
    };
    add(n_short, false);
    add(n_positions, n_short > 0);
    return table;
}

}  // namespace lorad::model
