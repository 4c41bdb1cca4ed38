#include "model/config/rope.h"

#include <cmath>

#include <gtest/gtest.h>

namespace lorad::model::rope_test {
namespace {

RopeConfig rope_of(RopeType type) {
    RopeConfig rope;
    rope.type = type;
    rope.rotary_dim = 16;
    rope.factor = 4.0;
    rope.original_max_positions = 64;
    return rope;
}

void expect_frequencies(const RopeConfig& rope, const std::vector<double>& expected) {
    const auto frequencies = rope_frequencies(rope);
    ASSERT_EQ(frequencies.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(frequencies[i], expected[i], expected[i] * 1e-9) << i;
}

TEST(Rope, FallsGeometricallyByDefault) {
    const auto frequencies = rope_frequencies(rope_of(RopeType::kDefault));
    for (size_t i = 0; i < frequencies.size(); ++i)
        EXPECT_NEAR(frequencies[i], std::pow(10000.0, -static_cast<double>(i) / 8), 1e-12);
}

TEST(Rope, DividesByTheFactorWhenLinear) {
    const auto linear = rope_frequencies(rope_of(RopeType::kLinear)),
               plain = rope_frequencies(rope_of(RopeType::kDefault));
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_DOUBLE_EQ(linear[i], plain[i] / 4.0);
}

// The expected numbers were computed once from the published formulas by a program of their own.
TEST(Rope, BlendsMiddleWavesInLlama3) {
    RopeConfig rope = rope_of(RopeType::kLlama3);
    rope.theta = 500000.0;
    rope.factor = 8.0;
    expect_frequencies(rope,
                       {1.0, 0.0794030091792082, 0.004700753866357992, 0.0009115830921521387, 0.00017677669529663688,
                        3.428102195952591e-05, 6.647869871181235e-06, 1.2891731721515574e-06});
}

TEST(Rope, RampsBetweenKeptAndSlowedWavesInYarn) {
    RopeConfig rope = rope_of(RopeType::kYarn);
    expect_frequencies(rope, {1.0, 0.23717082451262847, 0.05, 0.007905694150420948, 0.0025, 0.0007905694150420947,
                              0.00025, 7.905694150420948e-05});
    rope.truncate = false;
    expect_frequencies(rope, {1.0, 0.19858352015369318, 0.02559524589192421, 0.007905694150420948, 0.0025,
                              0.0007905694150420947, 0.00025, 7.905694150420948e-05});
}

TEST(Rope, TabulatesShortTextsBeforeLongOnes) {
    RopeConfig rope = rope_of(RopeType::kLongRope);
    rope.short_factors.assign(8, 2.0);
    rope.long_factors.assign(8, 5.0);
    EXPECT_EQ(short_text_tokens(rope, 64), 0u);
    EXPECT_EQ(short_text_tokens(rope, 65), 64u);
    EXPECT_EQ(short_text_tokens(rope_of(RopeType::kYarn), 65), 0u);
    const auto only_short = rope_table(rope, 64), both = rope_table(rope, 65);
    EXPECT_NEAR(only_short[63 * 16], std::cos(63 / 2.0), 1e-6);
    ASSERT_EQ(both.size(), (64u + 65) * 16);
    EXPECT_NEAR(both[63 * 16], std::cos(63 / 2.0), 1e-6);
    EXPECT_NEAR(both[(64 + 3) * 16], std::cos(3 / 5.0), 1e-6);
    EXPECT_NEAR(both[(64 + 64) * 16], std::cos(64 / 5.0), 1e-6);
}

TEST(Rope, TabulatesCosAndSinTimesTheAttentionFactor) {
    RopeConfig rope = rope_of(RopeType::kDefault);
    rope.attention_factor = 1.5;
    const auto table = rope_table(rope, 10);
    ASSERT_EQ(table.size(), 10u * 8 * 2);
    EXPECT_FLOAT_EQ(table[0], 1.5f);
    EXPECT_FLOAT_EQ(table[1], 0.0f);
    EXPECT_NEAR(table[9 * 16 + 0], 1.5 * std::cos(9.0), 1e-6);
    EXPECT_NEAR(table[9 * 16 + 3], 1.5 * std::sin(9.0 * std::pow(10000.0, -1.0 / 8)), 1e-6);
}

}  // namespace
}  // namespace lorad::model::rope_test
