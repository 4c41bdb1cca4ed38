// The device's draws beside model::sample, which has to give the same tokens bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "model/sampler.h"
#include "tests/model/choice_device.h"

namespace lorad::model {
namespace {

using proto::SamplingParams;
using testing::ChoiceDevice;

class DeviceDraw : public ::testing::Test {
  protected:
    // Every row's token, drawn on both sides.
    void expect_same(const std::vector<std::vector<float>>& rows, const std::vector<gpu::ChoiceRule>& rules, const std::string& what) {
        const auto found = device_.choose(rows, rules);
        for (size_t i = 0; i < rows.size(); ++i) {
            ASSERT_EQ(found[i].token, sample(rows[i], rules[i], scratch_))
                << what << ", row " << i << ": scale " << rules[i].scale << " top_k " << rules[i].top_k << " top_p " << rules[i].top_p
                << " min_weight " << rules[i].min_weight << " typical_p " << rules[i].typical_p << " seed " << rules[i].seed
                << " position " << rules[i].position;
        }
    }

    float uniform(float low, float high) { return std::uniform_real_distribution<float>(low, high)(random_); }

    SamplingParams random_params() {
        SamplingParams params;
        params.temperature = random_() % 8 == 0 ? uniform(0.001f, 0.1f) : uniform(0.1f, 2.0f);
        if (random_() % 2 == 0) params.top_p = random_() % 4 == 0 ? uniform(0.99f, 1.0f) : uniform(0.01f, 1.0f);
        if (random_() % 2 == 0) params.top_k = 2 + random_() % (random_() % 2 == 0 ? 50 : 5000);
        if (random_() % 3 == 0) params.min_p = uniform(0.0f, 0.3f);
        if (random_() % 4 == 0) params.typical_p = uniform(0.1f, 1.0f);
        params.seed = uint64_t{random_()} << 32 | random_();
        return params;
    }

    // Peaked, flat, with many ties, or wide.
    std::vector<float> random_row(uint32_t vocab) {
        std::vector<float> row(vocab);
        const uint32_t kind = random_() % 4;
        std::normal_distribution<float> normal(0.0f, kind == 3 ? 30.0f : 3.0f);
        for (float& logit : row) {
            logit = normal(random_);
            if (kind == 1) logit = std::round(logit);
            if (kind == 2) logit *= 1e-3f;
        }
        return row;
    }

    ChoiceDevice device_;
    SamplerScratch scratch_;
    const uint32_t seed_ = std::random_device()();
    std::mt19937 random_{seed_};
};

TEST_F(DeviceDraw, GivesTheHostsTokenForRandomParameters) {
    for (const uint32_t vocab : {3u, 64u, 999u, 5000u, 40003u}) {
        for (uint32_t round = 0; round < 6; ++round) {
            std::vector<std::vector<float>> rows;
            std::vector<gpu::ChoiceRule> rules;
            for (uint32_t i = 0; i < 12; ++i) {
                rows.push_back(random_row(vocab));
                rules.push_back(choice_rule(random_params(), random_() % 100000));
            }
            ASSERT_NO_FATAL_FAILURE(expect_same(rows, rules, "vocabulary " + std::to_string(vocab) + ", random seed " + std::to_string(seed_)));
        }
    }
}

TEST_F(DeviceDraw, OfTiesAtTheCutTheLowestIdsStay) {
    std::vector<float> row(3000, 1.0f);
    for (uint32_t i = 0; i < 3000; i += 100) row[i] = 2.0f;  // 30 of them
    std::vector<std::vector<float>> rows;
    std::vector<gpu::ChoiceRule> rules;
    for (uint32_t position = 0; position < 64; ++position) {
        SamplingParams params;
        if (position % 2 == 0) params.top_k = 12;
        else params.top_p = 0.02f;
        rows.push_back(row);
        rules.push_back(choice_rule(params, position));
    }
    ASSERT_NO_FATAL_FAILURE(expect_same(rows, rules, "ties"));
    for (const auto& found : device_.choose(rows, rules)) EXPECT_LT(found.token, 2900);
}

TEST_F(DeviceDraw, ExtremeLogitsAndTemperaturesAreNoExceptions) {
    std::vector<std::vector<float>> rows;
    std::vector<gpu::ChoiceRule> rules;
    for (const float scale : {1e-30f, 1.0f, 1e10f, 1e38f}) {
        for (const float temperature : {1e-37f, 1e-3f, 1.0f, 2.0f}) {
            std::vector<float> row(500);
            for (float& logit : row) logit = uniform(-scale, scale);
            row[17] = row[18] = scale;
            rows.push_back(row);
            rules.push_back(choice_rule({.temperature = temperature, .top_p = 0.9f, .seed = 3}, 7));
        }
    }
    expect_same(rows, rules, "extremes");
}

TEST_F(DeviceDraw, RowsWithoutADrawKeepTheirArgmaxAndBrokenOnesTheirFailure) {
    std::vector<std::vector<float>> rows(4, random_row(1000));
    std::vector<gpu::ChoiceRule> rules(4, choice_rule({.temperature = 1.5f, .seed = 1}, 3));
    rules[1] = gpu::ChoiceRule{};
    rows[2][500] = NAN;
    rows[3][10] = INFINITY;
    const auto found = device_.choose(rows, rules);
    EXPECT_EQ(found[0].token, sample(rows[0], rules[0], scratch_));
    EXPECT_EQ(found[1].token, std::max_element(rows[1].begin(), rows[1].end()) - rows[1].begin());
    EXPECT_EQ(found[2].token, -1);
    EXPECT_EQ(found[3].token, -1);
    for (const auto& each : found) EXPECT_EQ(each.sampled, each.token) << "what the next step reads";
}

}  // namespace
}  // namespace lorad::model
