#include "model/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>

namespace lorad::model {
namespace {

using proto::SamplingParams;

constexpr std::array<float, 6> kLogits = {1.0f, 3.0f, 0.0f, 2.0f, -1.0f, 3.0f};

// How often each token is drawn, over positions.
std::vector<uint32_t> histogram(std::span<const float> logits, const SamplingParams& params, uint32_t n_draws) {
    std::vector<uint32_t> counts(logits.size());
    SamplerScratch scratch;
    for (uint32_t position = 0; position < n_draws; ++position) {
        ++counts[static_cast<size_t>(sample(logits, params, position, scratch))];
    }
    return counts;
}

// Chi-square of counts against weights; tokens of weight zero must not occur.
double chi_square(const std::vector<uint32_t>& counts, const std::vector<double>& weights, uint32_t n_draws) {
    double sum = 0.0, statistic = 0.0;
    for (const double weight : weights) sum += weight;
    for (size_t i = 0; i < weights.size(); ++i) {
        const double expected = n_draws * weights[i] / sum;
        if (expected == 0.0) {
            EXPECT_EQ(counts[i], 0u) << "token " << i;
        } else {
            statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
        }
    }
    return statistic;
}

std::vector<double> weights_of(std::span<const float> logits, double temperature) {
    std::vector<double> weights;
    for (const float logit : logits) weights.push_back(std::exp(logit / temperature));
    return weights;
}

constexpr uint32_t kDraws = 50000;
constexpr double kChiSquareMax = 20.5;  // 5 degrees of freedom, one in a thousand

TEST(Sampler, DrawsInProportionToTheWeights) {
    for (const float temperature : {0.5f, 1.0f, 2.0f}) {
        const auto counts = histogram(kLogits, {.temperature = temperature, .seed = 11}, kDraws);
        EXPECT_LT(chi_square(counts, weights_of(kLogits, temperature), kDraws), kChiSquareMax) << temperature;
    }
}

TEST(Sampler, SeedsAreIndependentToo) {
    std::vector<uint32_t> counts(kLogits.size());
    SamplerScratch scratch;
    for (uint32_t seed = 0; seed < kDraws; ++seed) ++counts[static_cast<size_t>(sample(kLogits, {.seed = seed}, 5, scratch))];
    EXPECT_LT(chi_square(counts, weights_of(kLogits, 1.0), kDraws), kChiSquareMax);
}

TEST(Sampler, TopKKeepsTheMostProbableAndOfEqualsTheLowerId) {
    auto weights = weights_of(kLogits, 1.0);
    weights[0] = weights[2] = weights[4] = 0.0;
    EXPECT_LT(chi_square(histogram(kLogits, {.top_k = 3, .seed = 1}, kDraws), weights, kDraws), kChiSquareMax);
    EXPECT_EQ(histogram(kLogits, {.top_k = 1}, 100)[1], 100u);
    EXPECT_LT(chi_square(histogram(kLogits, {.top_k = 100, .seed = 2}, kDraws), weights_of(kLogits, 1.0), kDraws), kChiSquareMax);
}

TEST(Sampler, TopPKeepsTheFewestThatReachIt) {
    // Probabilities: 0.0527 0.3892 0.0194 0.1432 0.0071 0.3892
    auto weights = weights_of(kLogits, 1.0);
    weights[0] = weights[2] = weights[4] = 0.0;
    EXPECT_LT(chi_square(histogram(kLogits, {.top_p = 0.9f, .seed = 3}, kDraws), weights, kDraws), kChiSquareMax);
    weights[3] = 0.0;
    EXPECT_LT(chi_square(histogram(kLogits, {.top_p = 0.77f, .seed = 4}, kDraws), weights, kDraws), kChiSquareMax);
    EXPECT_EQ(histogram(kLogits, {.top_p = 0.01f}, 100)[1], 100u);
}

TEST(Sampler, TopPCountsWhatTopKLeft) {
    // Of the three left, the first two hold 0.845: enough for 0.8, though of all six they would be 0.778.
    auto weights = weights_of(kLogits, 1.0);
    weights[0] = weights[2] = weights[3] = weights[4] = 0.0;
    EXPECT_LT(chi_square(histogram(kLogits, {.top_p = 0.8f, .top_k = 3, .seed = 5}, kDraws), weights, kDraws), kChiSquareMax);
}

TEST(Sampler, MinPIsRelativeToTheMostProbable) {
    auto weights = weights_of(kLogits, 1.0);
    weights[0] = weights[2] = weights[4] = 0.0;  // exp(-2) and less of the best
    EXPECT_LT(chi_square(histogram(kLogits, {.min_p = 0.2f, .seed = 6}, kDraws), weights, kDraws), kChiSquareMax);
}

TEST(Sampler, DependsOnSeedPositionAndLogitsAlone) {
    std::mt19937 random(1);
    std::vector<float> logits(5000);
    for (float& logit : logits) logit = std::normal_distribution<float>(0.0f, 2.0f)(random);
    const SamplingParams params{.temperature = 0.8f, .top_p = 0.95f, .seed = 42};
    SamplerScratch fresh, used;
    (void)sample(kLogits, {.top_k = 2}, 3, used);
    uint32_t n_different = 0;
    for (uint32_t position = 0; position < 50; ++position) {
        const TokenId token = sample(logits, params, position, fresh);
        EXPECT_EQ(sample(logits, params, position, used), token);
        SamplingParams other = params;
        other.seed = 43;
        n_different += sample(logits, other, position, used) != token;
    }
    EXPECT_GT(n_different, 40u);
}

TEST(Sampler, TopPFindsTheSameSetInALargeVocabulary) {
    std::mt19937 random(2);
    std::vector<float> logits(20000);
    for (float& logit : logits) logit = std::normal_distribution<float>(0.0f, 3.0f)(random);
    auto weights = weights_of(logits, 1.0);
    std::vector<size_t> order(logits.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::sort(order, [&](size_t a, size_t b) { return weights[a] > weights[b]; });
    double sum = 0.0, kept = 0.0;
    for (const double weight : weights) sum += weight;
    std::vector<bool> is_kept(logits.size());
    for (size_t i = 0; i < order.size() && kept < 0.5 * sum; ++i) {
        kept += weights[order[i]];
        is_kept[order[i]] = true;
    }
    SamplerScratch scratch;
    for (uint32_t position = 0; position < 2000; ++position) {
        EXPECT_TRUE(is_kept[static_cast<size_t>(sample(logits, {.top_p = 0.5f, .seed = 9}, position, scratch))]);
    }
}

TEST(Sampler, GreedyTakesTheFirstMaximum) {
    SamplerScratch scratch;
    EXPECT_EQ(sample(kLogits, {.temperature = 0.0f}, 0, scratch), 1);
}

TEST(Sampler, ReportsLogitsThatAreNotFinite) {
    SamplerScratch scratch;
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        std::array<float, 3> logits = {0.0f, bad, 1.0f};
        EXPECT_EQ(sample(logits, {}, 0, scratch), -1);
        EXPECT_EQ(sample(logits, {.temperature = 0.0f}, 0, scratch), -1);
    }
}

TEST(Sampler, UniformNumbersFillTheUnitInterval) {
    std::array<uint32_t, 16> bins{};
    for (uint32_t i = 0; i < 32000; ++i) {
        const double u = uniform_at(i % 7, i);
        ASSERT_TRUE(u >= 0.0 && u < 1.0);
        ++bins[static_cast<size_t>(u * 16)];
    }
    double statistic = 0.0;
    for (const uint32_t count : bins) statistic += (count - 2000.0) * (count - 2000.0) / 2000.0;
    EXPECT_LT(statistic, 37.7);  // 15 degrees of freedom, one in a thousand
}

}  // namespace
}  // namespace lorad::model
