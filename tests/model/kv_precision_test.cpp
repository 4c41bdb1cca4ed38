// Which keys eight bits are enough for, told from biases and head norms.
#include "model/exec/kv_precision.h"

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "model/config/config.h"

namespace lorad::model::kv_precision_test {
namespace {

ModelConfig config_of(uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim) {
    ModelConfig config;
    config.n_heads = n_heads;
    config.n_kv_heads = n_kv_heads;
    config.head_dim = head_dim;
    config.rope.rotary_dim = head_dim;
    return config;
}

double key_noise(const KeyStatistics& layer, const ModelConfig& config) {
    return model::key_noise(layer, config.layer(0).attention, config.rope);
}

TEST(KeyNoise, IsNothingWithoutBiasesAndNorms) { EXPECT_EQ(key_noise({}, config_of(4, 2, 64)), 0.0); }

// A pair of channels of 150 and 150 has 212 at some position: a step of 212 / 127 in its group, an error of 1 /
// sqrt(12) of that, times a query of 80 and 80 in the same pair and 0 elsewhere, by the square root of the head's size.
TEST(KeyNoise, IsWhatRoundingALargePairDoesToScores) {
    std::vector<float> q(2 * 64, 0.0f), k(64, 0.0f);
    k[31] = k[63] = 150.0f;
    q[64 + 31] = q[64 + 63] = 80.0f;
    const double step = std::hypot(150.0, 150.0) / 127, error = step / std::sqrt(12.0);
    EXPECT_NEAR(key_noise({.q_bias = q, .k_bias = k}, config_of(2, 1, 64)), std::hypot(80.0, 80.0) * error / 8.0, 1e-6);
}

// The same by rounding keys of random positions: biases turned by rope, in groups of 32 with their own scale.
TEST(KeyNoise, AgreesWithRoundedKeys) {
    std::mt19937 random(5);
    std::normal_distribution<double> normal;
    constexpr uint32_t kDim = 128, kHalf = kDim / 2, kTrials = 4000;
    std::vector<float> q(kDim), k(kDim);
    for (uint32_t d = 0; d < kDim; ++d)
        q[d] = static_cast<float>(normal(random) * 3),
        k[d] = static_cast<float>(normal(random) * (d % kHalf == 20 ? 90 : 2));
    double sum = 0.0;
    for (uint32_t trial = 0; trial < kTrials; ++trial) {
        std::vector<double> turned_q(kDim), turned_k(kDim);
        for (uint32_t d = 0; d < kHalf; ++d) {
            for (auto [from, to] : {std::pair{&q, &turned_q}, std::pair{&k, &turned_k}}) {
                const double angle = std::uniform_real_distribution<double>(0.0, 6.28318530718)(random);
                (*to)[d] = (*from)[d] * std::cos(angle) - (*from)[d + kHalf] * std::sin(angle);
                (*to)[d + kHalf] = (*from)[d + kHalf] * std::cos(angle) + (*from)[d] * std::sin(angle);
            }
        }
        double change = 0.0;
        for (uint32_t begin = 0; begin < kDim; begin += 32) {
            double top = 0.0;
            for (uint32_t d = begin; d < begin + 32; ++d) top = std::max(top, std::abs(turned_k[d]));
            for (uint32_t d = begin; d < begin + 32; ++d)
                change += turned_q[d] * (std::round(turned_k[d] * 127 / top) * top / 127 - turned_k[d]);
        }
        sum += change * change / kDim;
    }
    const double measured = std::sqrt(sum / kTrials),
                 told = key_noise({.q_bias = q, .k_bias = k}, config_of(1, 1, kDim));
    // Beforehand the largest value of a group is taken for what its pair has at most, which it has at some positions
    // alone.
    EXPECT_LE(measured, told * 1.05);
    EXPECT_GE(measured, told / 2);
}

TEST(KeyNoise, OfHeadNormsGrowsWithTheirLargestWeights) {
    std::vector<float> ones(128, 1.0f), uneven(128, 1.0f);
    uneven[17] = 30.0f;
    const ModelConfig config = config_of(4, 2, 128);
    EXPECT_LT(key_noise({.q_norm = ones, .k_norm = ones}, config), kKeyNoiseMax / 5);
    EXPECT_GT(key_noise({.q_norm = uneven, .k_norm = uneven}, config), kKeyNoiseMax);
}

TEST(KeyNoise, IsThatOfTheWorstHead) {
    std::vector<float> q(4 * 64, 1.0f), k(2 * 64, 1.0f), k_one = k;
    for (uint32_t d = 64; d < 128; ++d) k_one[d] = 50.0f;
    const ModelConfig config = config_of(4, 2, 64);
    EXPECT_NEAR(key_noise({.q_bias = q, .k_bias = k_one}, config), 50 * key_noise({.q_bias = q, .k_bias = k}, config),
                1e-3);
}

}  // namespace
}  // namespace lorad::model::kv_precision_test
