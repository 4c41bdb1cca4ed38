// Penalties and filters against transformers' own processors on the same rows, and draws against its probabilities.
#include <algorithm>
#include <cmath>
#include <iterator>

#include <gtest/gtest.h>

#include "model/output/logits.h"
#include "model/output/sampler.h"
#include "tests/support/sampling_goldens.h"

namespace lorad::model::sampling_golden_test {
namespace {

constexpr uint32_t kDraws = 100000;

std::vector<float> adjusted_logits(const SamplingCase& one) {
    std::vector<float> logits = one.logits;
    TokenChanges changes(one.params, one.prompt, {});
    for (const TokenId token : one.generated) changes.add_generated(token);
    gpu::ChoiceRule rule{};
    add_changes(one.params, rule);
    change_logits(logits, rule, changes.entries());
    return logits;
}

TEST(SamplingGoldens, PenaltiesGiveTransformersLogits) {
    uint32_t n_touched = 0;
    for (const SamplingCase& one : sampling_cases()) {
        SCOPED_TRACE(one.name);
        const std::vector<float> logits = adjusted_logits(one);
        std::vector<bool> touched(logits.size());
        for (const auto& [token, expected] : one.adjusted) {
            // Both round each of three operations on numbers below 100 once, and one of them 1 / penalty before.
            EXPECT_NEAR(logits[size_t(token)], expected, 4 * 100 * 0x1p-24f) << "token " << token;
            touched[size_t(token)] = true;
            ++n_touched;
        }
        for (size_t id = 0; id < logits.size(); ++id) {
            ASSERT_TRUE(touched[id] || logits[id] == one.logits[id]) << "token " << id;
        }
    }
    EXPECT_GT(n_touched, 500u);
}

// Of each token of a row that typical_p alone filters: how far its information -ln p is from the entropy.
std::vector<double> typical_distances(const std::vector<float>& logits, double temperature) {
    const double best = *std::ranges::max_element(logits);
    double sum = 0.0, entropy = 0.0;
    for (const float logit : logits) sum += std::exp((logit - best) / temperature);
    std::vector<double> out;
    for (const float logit : logits) out.push_back(std::log(sum) - (logit - best) / temperature);
    for (const double information : out) entropy += std::exp(-information) * information;
    for (double& information : out) information = std::abs(information - entropy);
    return out;
}

TEST(SamplingGoldens, FiltersKeepTransformersTokens) {
    const std::vector<SamplingCase> cases = sampling_cases();
    ASSERT_GT(cases.size(), 100u);
    SamplerScratch scratch;
    for (const SamplingCase& one : cases) {
        SCOPED_TRACE(one.name);
        const std::vector<float> logits = adjusted_logits(one);
        const TokenId token = sample(logits, one.params, 0, scratch);
        std::vector<uint32_t> found = scratch.ids, differing;
        std::ranges::sort(found);
        std::ranges::set_symmetric_difference(found, one.kept, std::back_inserter(differing));
        // What is 2^-39 times as probable as the best or less would come once in 10^11 draws; it may be left out or
        // not.
        const double best = *std::ranges::max_element(logits);
        std::erase_if(differing,
                      [&](uint32_t id) { return (logits[id] - best) / one.params.temperature < -39 * std::log(2.0); });
        // The entropy leaves out what is 2^-24 times as probable as the best or less: with 150,000 tokens of a flat row
        // it is off by less than 2^-10 nats, and the few tokens that lie that near to the last kept may be in or out.
        const proto::SamplingParams& params = one.params;
        if (params.typical_p < 1.0f && params.top_k == 0 && params.top_p == 1.0f && params.min_p == 0.0f &&
            !differing.empty()) {
            const std::vector<double> distances = typical_distances(logits, params.temperature);
            double last = 0.0;
            for (const uint32_t id : one.kept) last = std::max(last, distances[id]);
            std::erase_if(differing, [&](uint32_t id) { return std::abs(distances[id] - last) < 0x1p-10; });
        }
        EXPECT_EQ(differing, std::vector<uint32_t>()) << found.size() << " kept, " << one.kept.size() << " expected";
        EXPECT_TRUE(std::ranges::binary_search(one.kept, uint32_t(token)));
    }
}

TEST(SamplingGoldens, DrawsFollowTransformersProbabilities) {
    SamplerScratch scratch;
    uint32_t n_cases = 0;
    for (SamplingCase& one : sampling_cases()) {
        if (one.probabilities.empty() || one.name.ends_with("1")) continue;
        SCOPED_TRACE(one.name);
        const std::vector<float> logits = adjusted_logits(one);
        std::vector<uint32_t> counts(logits.size());
        one.params.seed = 20261121;
        for (uint32_t position = 0; position < kDraws; ++position)
            ++counts[size_t(sample(logits, one.params, position, scratch))];
        const auto [statistic, limit] = chi_square_of(one, counts, kDraws);
        EXPECT_LT(statistic, limit);
        uint64_t n_kept = 0;
        for (const uint32_t id : one.kept) n_kept += counts[id];
        EXPECT_EQ(n_kept, kDraws) << "tokens were drawn that transformers takes out";
        // The test has teeth: the same counts do not follow other probabilities.
        if (one.kept.size() < 5) continue;
        std::ranges::reverse(one.probabilities);
        EXPECT_GT(chi_square_of(one, counts, kDraws).first, limit);
        ++n_cases;
    }
    EXPECT_GT(n_cases, 10u);
}

}  // namespace
}  // namespace lorad::model::sampling_golden_test
