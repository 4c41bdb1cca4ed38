// What is done to logits and read off them, against the formulas in double.
#include "model/output/logits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "model/output/sampler.h"

namespace lorad::model::logits_test {
namespace {

using proto::SamplingParams;

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

std::vector<float> random_logits(size_t n, uint32_t seed, float spread = 3.0f) {
    std::mt19937 random(seed);
    std::vector<float> logits(n);
    for (float& logit : logits) logit = std::normal_distribution<float>(0.0f, spread)(random);
    return logits;
}

// transformers' RepetitionPenaltyLogitsProcessor and OpenAI's formula, one token after the other.
std::vector<double> penalized(std::span<const float> logits, const SamplingParams& params,
                              const std::vector<TokenId>& prompt, const std::vector<TokenId>& generated) {
    std::vector<double> out(logits.begin(), logits.end());
    for (const auto& bias : params.logit_bias) out[size_t(bias.token)] += double(bias.bias);
    std::map<TokenId, int> count;
    for (TokenId token : prompt) count[token] += 0;
    for (TokenId token : generated) count[token] += 1;
    for (auto [token, n] : count) {
        double& logit = out[size_t(token)];
        logit = logit < 0 ? logit * double(params.repetition_penalty) : logit / double(params.repetition_penalty);
        logit -= double(params.frequency_penalty) * n + (n > 0 ? double(params.presence_penalty) : 0.0);
    }
    return out;
}

TEST(Logits, PenaltiesAreThoseOfTheFormulas) {
    std::mt19937 random(7);
    for (uint32_t round = 0; round < 50; ++round) {
        SCOPED_TRACE(round);
        std::vector<float> logits = random_logits(300, round);
        SamplingParams params;
        params.repetition_penalty = std::uniform_real_distribution<float>(0.5f, 2.0f)(random);
        params.frequency_penalty = std::uniform_real_distribution<float>(-2.0f, 2.0f)(random);
        params.presence_penalty = std::uniform_real_distribution<float>(-2.0f, 2.0f)(random);
        params.logit_bias = {{TokenId(random() % 300), 5.0f}, {TokenId(random() % 300), -100.0f}};
        if (params.logit_bias[0].token == params.logit_bias[1].token) params.logit_bias.pop_back();
        std::vector<TokenId> prompt(20), generated(30);
        for (TokenId& token : prompt) token = TokenId(random() % 300);
        for (TokenId& token : generated) token = TokenId(random() % 40);
        TokenChanges changes(params, prompt, {});
        // The last one may be known to the device alone.
        const bool fed_back = round % 2 == 1;
        for (size_t i = 0; i + (fed_back ? 1 : 0) < generated.size(); ++i) changes.add_generated(generated[i]);
        std::vector<double> expected = penalized(logits, params, prompt, generated);
        gpu::ChoiceRule rule{};
        add_changes(params, rule);
        change_logits(logits, rule, changes.entries(), fed_back ? generated.back() : -1);
        for (size_t id = 0; id < logits.size(); ++id) {
            // Five roundings of numbers up to about 200, one of them of 1 / penalty.
            EXPECT_NEAR(double(logits[id]), expected[id], 5 * 200 * 0x1p-24) << id;
        }
    }
}

TEST(Logits, WithoutPenaltiesOnlyTheBiasIsAdded) {
    const std::vector<float> before = random_logits(50, 1);
    std::vector<float> logits = before;
    SamplingParams params;
    params.logit_bias = {{7, 1.5f}, {900, 1.0f}};  // one beyond the row
    TokenChanges changes(params, std::vector<TokenId>{1, 2, 3}, std::vector<TokenId>{5});
    changes.add_generated(4);
    EXPECT_EQ(changes.entries().size(), 3u);
    gpu::ChoiceRule rule{};
    change_logits(logits, rule, changes.entries());
    EXPECT_EQ(logits, before) << "the rule does not ask for it";
    add_changes(params, rule);
    change_logits(logits, rule, changes.entries());
    for (size_t id = 0; id < logits.size(); ++id) EXPECT_EQ(logits[id], before[id] + (id == 7 ? 1.5f : 0.0f)) << id;
}

TEST(Logits, BansLeaveTheOthersAsTheyAre) {
    const std::vector<float> before = random_logits(70, 2);
    std::vector<float> only = before, without = before, masked = before;
    allow_only(only, std::vector<TokenId>{3, 3, 64, 69, 500});
    forbid(without, std::vector<TokenId>{0, 69, 500, -1});
    const std::array<uint32_t, 3> words = {0xffffffffu, 0x80000001u, 1u << 5};
    apply_mask(masked, words);
    for (uint32_t id = 0; id < 70; ++id) {
        const bool is_only = id == 3 || id == 64 || id == 69;
        EXPECT_EQ(only[id], is_only ? before[id] : kForbidden) << id;
        EXPECT_EQ(without[id], id == 0 || id == 69 ? kForbidden : before[id]) << id;
        const bool in_mask = id <= 32 || id == 63 || id == 69;
        EXPECT_EQ(masked[id], in_mask ? before[id] : kForbidden) << id;
    }
}

TEST(Logits, LogprobsAreTheLogSoftmaxWithRanks) {
    for (uint32_t seed = 0; seed < 10; ++seed) {
        SCOPED_TRACE(seed);
        const std::vector<float> logits = random_logits(5000, seed, 8.0f);
        double sum = 0.0;
        for (const float logit : logits) sum += std::exp(double(logit));
        const TokenId token = TokenId(seed * 311 % 5000);
        const proto::TokenLogprobs found = logprobs_of(logits, token, 20);
        // Each of 5000 float exponentials is off by 1e-7 of itself; then one rounding of up to 60.
        constexpr double kTolerance = 1e-5;
        EXPECT_NEAR(double(found.token.logprob), double(logits[size_t(token)]) - std::log(sum), kTolerance);
        const auto n_higher = std::ranges::count_if(logits, [&](float logit) { return logit > logits[size_t(token)]; });
        EXPECT_EQ(found.token.rank, uint32_t(n_higher) + 1);
        std::vector<TokenId> order(logits.size());
        for (size_t i = 0; i < order.size(); ++i) order[i] = TokenId(i);
        std::ranges::stable_sort(order, [&](TokenId a, TokenId b) { return logits[size_t(a)] > logits[size_t(b)]; });
        ASSERT_EQ(found.top.size(), 20u);
        for (uint32_t i = 0; i < 20; ++i) {
            EXPECT_EQ(found.top[i].id, order[i]);
            EXPECT_EQ(found.top[i].rank, i + 1);
            EXPECT_NEAR(double(found.top[i].logprob), double(logits[size_t(order[i])]) - std::log(sum), kTolerance);
        }
    }
    EXPECT_TRUE(logprobs_of(random_logits(10, 1), 3, 0).top.empty());
    EXPECT_EQ(logprobs_of(random_logits(10, 1), 3, 20).top.size(), 10u);
}

TEST(Logits, ForbiddenTokensAreNeverDrawn) {
    std::vector<float> logits = random_logits(64, 5);
    std::vector<TokenId> banned;
    for (TokenId id = 0; id < 64; ++id) {
        if (id % 3 != 0) banned.push_back(id);
    }
    forbid(logits, banned);
    SamplerScratch scratch;
    for (const SamplingParams& params :
         {SamplingParams{.temperature = 2.0f}, SamplingParams{.temperature = 0.0f}, SamplingParams{.top_k = 60},
          SamplingParams{.top_p = 0.99f}, SamplingParams{.min_p = 0.001f}, SamplingParams{.typical_p = 0.9f}}) {
        for (uint32_t position = 0; position < 500; ++position)
            EXPECT_EQ(sample(logits, params, position, scratch) % 3, 0);
    }
    std::fill(logits.begin(), logits.end(), kForbidden);
    EXPECT_EQ(sample(logits, {}, 0, scratch), -1);
    EXPECT_EQ(sample(logits, {.temperature = 0.0f}, 0, scratch), -1);
}

// transformers' TypicalLogitsWarper in double.
std::vector<bool> typical_set(std::span<const float> logits, double mass) {
    double sum = 0.0, entropy = 0.0;
    for (const float logit : logits) sum += std::exp(double(logit));
    std::vector<double> p;
    for (const float logit : logits) p.push_back(std::exp(double(logit)) / sum);
    for (const double q : p) entropy -= q * std::log(q);
    std::vector<size_t> order(p.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    const auto shift = [&](size_t id) { return std::abs(-std::log(p[id]) - entropy); };
    std::ranges::sort(order, [&](size_t a, size_t b) { return shift(a) < shift(b); });
    std::vector<bool> kept(p.size());
    double sum_kept = 0.0;
    for (const size_t id : order) {
        if (sum_kept >= mass) break;
        kept[id] = true;
        sum_kept += p[id];
    }
    return kept;
}

TEST(Logits, TypicalKeepsWhatIsNearestToTheEntropy) {
    for (const float mass : {0.2f, 0.5f, 0.9f}) {
        const std::vector<float> logits = random_logits(24, 11, 1.5f);
        const std::vector<bool> kept = typical_set(logits, double(mass));
        std::vector<double> weights;
        double sum = 0.0;
        for (size_t id = 0; id < logits.size(); ++id) {
            weights.push_back(kept[id] ? std::exp(double(logits[id])) : 0.0);
            sum += weights.back();
        }
        std::vector<uint32_t> counts(logits.size());
        SamplerScratch scratch;
        constexpr uint32_t kDraws = 100000;
        for (uint32_t position = 0; position < kDraws; ++position)
            ++counts[size_t(sample(logits, {.typical_p = mass, .seed = 3}, position, scratch))];
        double statistic = 0.0;
        for (size_t id = 0; id < counts.size(); ++id) {
            const double expected = kDraws * weights[id] / sum;
            if (expected == 0.0) {
                EXPECT_EQ(counts[id], 0u) << id;
            } else {
                statistic += (counts[id] - expected) * (counts[id] - expected) / expected;
            }
        }
        EXPECT_LT(statistic, 49.8) << mass;  // 23 degrees of freedom at most, one in a thousand
    }
}

}  // namespace
}  // namespace lorad::model::logits_test
