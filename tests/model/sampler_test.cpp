#include "model/output/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "gpu/kernels/sampling/sample_math.h"

namespace lorad::model::sampler_test {
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
    for (uint32_t seed = 0; seed < kDraws; ++seed)
        ++counts[static_cast<size_t>(sample(kLogits, {.seed = seed}, 5, scratch))];
    EXPECT_LT(chi_square(counts, weights_of(kLogits, 1.0), kDraws), kChiSquareMax);
}

TEST(Sampler, TopKKeepsTheMostProbableAndOfEqualsTheLowerId) {
    auto weights = weights_of(kLogits, 1.0);
    weights[0] = weights[2] = weights[4] = 0.0;
    EXPECT_LT(chi_square(histogram(kLogits, {.top_k = 3, .seed = 1}, kDraws), weights, kDraws), kChiSquareMax);
    EXPECT_EQ(histogram(kLogits, {.top_k = 1}, 100)[1], 100u);
    EXPECT_LT(chi_square(histogram(kLogits, {.top_k = 100, .seed = 2}, kDraws), weights_of(kLogits, 1.0), kDraws),
              kChiSquareMax);
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
    EXPECT_LT(chi_square(histogram(kLogits, {.top_p = 0.8f, .top_k = 3, .seed = 5}, kDraws), weights, kDraws),
              kChiSquareMax);
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

TEST(Sampler, RandomBitsFillTheUnitInterval) {
    std::array<uint32_t, 16> bins{};
    for (uint32_t i = 0; i < 32000; ++i) ++bins[gpu::draw_bits(i % 7, i) >> 60];
    double statistic = 0.0;
    for (const uint32_t count : bins) statistic += (count - 2000.0) * (count - 2000.0) / 2000.0;
    EXPECT_LT(statistic, 37.7);  // 15 degrees of freedom, one in a thousand
}

TEST(Sampler, WeightsAreTheirPowersOfTwoAndNeverRise) {
    uint64_t before = uint64_t{1} << 40;
    for (uint32_t key = 0; key < (2u << 24); ++key) {
        const uint64_t weight = gpu::draw_weight(key);
        ASSERT_LE(weight, before) << key;
        before = weight;
        // The polynomial's error, and its last bit: 2^-32 of a weight that is at least 2^31 of them.
        if (key % 1009 != 0) continue;
        ASSERT_NEAR(static_cast<double>(weight), std::exp2(40.0 - key * 0x1.0p-24), 2e-9 * 0x1.0p40) << key;
    }
    for (uint32_t key = 2u << 24; key < gpu::kDrawKeyEnd + 1000; key += 997) {
        const uint64_t weight = gpu::draw_weight(key);
        ASSERT_LE(weight, before) << key;
        before = weight;
        const double exact = std::exp2(40.0 - key * 0x1.0p-24);
        ASSERT_NEAR(static_cast<double>(weight), exact, 2e-9 * exact + 1.0) << key;  // rounded down to whole ones
    }
    EXPECT_EQ(gpu::draw_weight(gpu::kDrawKeyEnd), 0u);
}

TEST(Sampler, WideProductsAreExact) {
    std::mt19937_64 random(5);
    for (int i = 0; i < 100000; ++i) {
        const uint64_t a = random() >> (random() % 64), b = random() >> (random() % 64);
        ASSERT_EQ(gpu::mul_high_64(a, b), static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64))
            << a << " " << b;
    }
}

// Which tokens can come, by the definition in double precision; empty where rounding decides: a sum is within 1e-7 of
// its bound.
std::vector<bool> kept_by_definition(std::span<const float> logits, const SamplingParams& params) {
    constexpr double kClose = 1e-7;
    std::vector<size_t> order(logits.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return logits[a] > logits[b]; });
    std::vector<double> weights;
    for (const float logit : logits)
        weights.push_back(std::exp((double{logit} - logits[order[0]]) / params.temperature));
    if (params.top_k > 0 && params.top_k < order.size()) order.resize(params.top_k);
    const auto sum_of = [&] {
        double sum = 0.0;
        for (const size_t id : order) sum += weights[id];
        return sum;
    };
    bool is_close = false;
    if (params.top_p < 1.0f) {
        const double sum = sum_of();
        double kept = 0.0;
        size_t n = 0;
        while (n < order.size() && kept < params.top_p * sum) {
            kept += weights[order[n++]];
            is_close = is_close || std::abs(kept / sum - params.top_p) < kClose;
        }
        order.resize(n);
    }
    std::erase_if(order, [&](size_t id) {
        is_close = is_close || std::abs(weights[id] - params.min_p) < kClose;
        return weights[id] < params.min_p;
    });
    if (params.typical_p < 1.0f) {
        const double sum = sum_of();
        double entropy = 0.0, kept = 0.0;
        for (const size_t id : order) entropy -= weights[id] / sum * std::log(weights[id] / sum);
        const auto distance = [&](size_t id) { return std::abs(-std::log(weights[id] / sum) - entropy); };
        std::ranges::stable_sort(order, {}, distance);
        size_t n = 0;
        while (n < order.size() && kept < params.typical_p * sum) {
            kept += weights[order[n++]];
            is_close = is_close || std::abs(kept / sum - params.typical_p) < kClose;
        }
        // Distances are told apart to 2^-16 powers of two.
        is_close = is_close || (n < order.size() && distance(order[n]) - distance(order[n - 1]) < 1e-4);
        order.resize(n);
    }
    if (is_close) return {};
    std::vector<bool> kept(logits.size());
    for (const size_t id : order) kept[id] = true;
    return kept;
}

TEST(Sampler, KeepsWhatTheDefinitionKeepsForRandomParameters) {
    const uint32_t seed = std::random_device()();
    std::mt19937 random(seed);
    const auto uniform = [&](float low, float high) {
        return std::uniform_real_distribution<float>(low, high)(random);
    };
    SamplerScratch scratch;
    uint32_t n_compared = 0;
    for (uint32_t round = 0; round < 300; ++round) {
        std::vector<float> logits(20 + random() % 60);
        for (float& logit : logits) logit = std::normal_distribution<float>(0.0f, 2.0f)(random);
        SamplingParams params{.temperature = uniform(0.3f, 2.0f), .seed = round};
        if (random() % 2 == 0) params.top_p = uniform(0.05f, 1.0f);
        if (random() % 2 == 0) params.top_k = 2 + random() % 30;
        if (random() % 2 == 0) params.min_p = uniform(0.0f, 0.3f);
        if (random() % 4 == 0) params.typical_p = uniform(0.1f, 1.0f);
        const std::vector<bool> kept = kept_by_definition(logits, params);
        if (kept.empty()) continue;
        ++n_compared;
        std::vector<bool> found(logits.size());
        for (uint32_t position = 0; position < 3000; ++position)
            found[static_cast<size_t>(sample(logits, params, position, scratch))] = true;
        for (size_t id = 0; id < logits.size(); ++id) {
            ASSERT_TRUE(kept[id] || !found[id]) << "token " << id << " of round " << round << ", random seed " << seed;
            // Missed in 3,000 draws with probability e^-30.
            double weight = 0.0, sum = 0.0;
            for (size_t other = 0; other < logits.size(); ++other) {
                const double own = kept[other] ? std::exp(double{logits[other]} / params.temperature) : 0.0;
                sum += own;
                if (other == id) weight = own;
            }
            ASSERT_TRUE(found[id] || weight / sum < 0.01)
                << "token " << id << " of round " << round << ", random seed " << seed;
        }
    }
    EXPECT_GT(n_compared, 200u);
}

}  // namespace
}  // namespace lorad::model::sampler_test
