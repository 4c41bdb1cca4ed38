// The device's draws beside model::sample, which has to give the same tokens bit for bit.
#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "model/output/logits.h"
#include "model/output/sampler.h"
#include "tests/model/choice_device.h"

namespace lorad::model::device_draw_test {
namespace {

using proto::SamplingParams;
using testing::ChoiceDevice;
using testing::ChoiceRow;

class DeviceDraw : public ::testing::Test {
  protected:
    TokenId on_host(const ChoiceRow& row) {
        std::vector<float> logits = row.logits;
        if (!row.allowed.empty()) allow_only(logits, row.allowed);
        if (!row.mask.empty()) apply_mask(logits, row.mask);
        change_logits(logits, row.rule, row.changes, row.last_token);
        const TokenId token = sample(logits, row.rule, scratch_);
        return token < 0 ? gpu::kNothingAllowed : token;
    }

    // Every row's token, drawn on both sides.
    void expect_same(const std::vector<ChoiceRow>& rows, const std::string& what) {
        const auto found = device_.choose(rows);
        for (size_t i = 0; i < rows.size(); ++i) {
            const gpu::ChoiceRule& rule = rows[i].rule;
            ASSERT_EQ(found[i].token, on_host(rows[i]))
                << what << ", row " << i << ": what " << rule.what << " scale " << rule.scale << " top_k " << rule.top_k
                << " top_p " << rule.top_p << " min_weight " << rule.min_weight << " typical_p " << rule.typical_p
                << " seed " << rule.seed << " position " << rule.position << " changes " << rows[i].changes.size()
                << " allowed " << rows[i].allowed.size() << " last token " << rows[i].last_token;
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
        for (uint32_t round = 0; round < (vocab > 5000 ? 2 : 6); ++round) {
            std::vector<ChoiceRow> rows;
            for (uint32_t i = 0; i < 12; ++i)
                rows.push_back({random_row(vocab), choice_rule(random_params(), random_() % 100000)});
            ASSERT_NO_FATAL_FAILURE(
                expect_same(rows, "vocabulary " + std::to_string(vocab) + ", random seed " + std::to_string(seed_)));
        }
    }
}

TEST_F(DeviceDraw, ChangesAndBansAreTheHosts) {
    for (const uint32_t vocab : {20u, 1000u, 7001u}) {
        for (uint32_t round = 0; round < 4; ++round) {
            std::vector<ChoiceRow> rows;
            for (uint32_t i = 0; i < 12; ++i) {
                SamplingParams params = random_params();
                if (random_() % 3 == 0) params.temperature = 0.0f;
                if (random_() % 2 == 0) params.repetition_penalty = uniform(0.5f, 2.0f);
                if (random_() % 2 == 0) params.frequency_penalty = uniform(-2.0f, 2.0f);
                if (random_() % 2 == 0) params.presence_penalty = uniform(-2.0f, 2.0f);
                // some are beyond the row
                const auto token = [&] { return static_cast<TokenId>(random_() % (vocab + 2)); };
                const TokenId biased = token();
                if (random_() % 2 == 0) params.logit_bias = {{biased, uniform(-100.0f, 100.0f)}, {biased + 1, 3.0f}};
                ChoiceRow row{random_row(vocab), choice_rule(params, random_() % 100)};
                std::vector<TokenId> prompt(random_() % 100);
                for (TokenId& id : prompt) id = token();
                TokenChanges changes(params, prompt, std::vector<TokenId>{token(), token()});
                for (uint32_t n = random_() % 300; n > 0; --n) changes.add_generated(token() % 50);
                add_changes(params, row.rule);
                if (random_() % 2 == 0) row.rule.what |= gpu::kRuleBansEnds;
                row.changes.assign(changes.entries().begin(), changes.entries().end());
                // Listed, not listed, or known to the host.
                if (i % 3 == 0 && !row.changes.empty())
                    row.last_token = static_cast<TokenId>(row.changes.back().token % vocab);
                if (i % 3 == 1) row.last_token = static_cast<TokenId>(random_() % vocab);
                if (random_() % 3 == 0) {
                    for (uint32_t n = 1 + random_() % 40; n > 0; --n) row.allowed.push_back(token());
                    std::ranges::sort(row.allowed);
                }
                rows.push_back(std::move(row));
            }
            ASSERT_NO_FATAL_FAILURE(
                expect_same(rows, "vocabulary " + std::to_string(vocab) + ", random seed " + std::to_string(seed_)));
        }
    }
}

// Bits beyond the vocabulary are set as well: nobody may look at them.
TEST_F(DeviceDraw, MasksAreTheHosts) {
    for (const uint32_t vocab : {3u, 31u, 32u, 33u, 999u, 7001u, 40003u}) {
        for (uint32_t round = 0; round < (vocab > 7001 ? 2 : 6); ++round) {
            std::vector<ChoiceRow> rows;
            for (uint32_t i = 0; i < 12; ++i) {
                SamplingParams params = random_params();
                if (random_() % 3 == 0) params.temperature = 0.0f;
                ChoiceRow row{random_row(vocab), choice_rule(params, random_() % 100000)};
                if (random_() % 3 == 0) {
                    params.frequency_penalty = uniform(-2.0f, 2.0f);
                    TokenChanges changes(params, {}, {});
                    for (uint32_t n = random_() % 300; n > 0; --n)
                        changes.add_generated(static_cast<TokenId>(random_() % vocab));
                    add_changes(params, row.rule);
                    row.changes.assign(changes.entries().begin(), changes.entries().end());
                    row.last_token = static_cast<TokenId>(random_() % vocab);
                }
                if (random_() % 4 == 0) row.rule.what |= gpu::kRuleLogprobs;
                // From nearly nothing to nearly everything; every third row is left without.
                if (i % 3 != 0) {
                    row.rule.what |= gpu::kRuleMasked;
                    row.mask.assign(mask_words(vocab), 0);
                    if (vocab % 32 != 0) row.mask.back() = ~0u << (vocab % 32);
                    const auto allow = [&](uint32_t id) { row.mask[id / 32] |= 1u << (id % 32); };
                    const float share = std::pow(uniform(0.0f, 1.0f), 4.0f);
                    for (uint32_t id = 0; id < vocab; ++id) {
                        if (uniform(0.0f, 1.0f) < share) allow(id);
                    }
                    allow(random_() % vocab);
                }
                rows.push_back(std::move(row));
            }
            ASSERT_NO_FATAL_FAILURE(
                expect_same(rows, "vocabulary " + std::to_string(vocab) + ", random seed " + std::to_string(seed_)));
        }
    }
}

TEST_F(DeviceDraw, OfAMaskWithOneTokenThatOneComesWhereverItLies) {
    const uint32_t vocab = 1003;
    const std::vector<float> logits = random_row(vocab);
    for (const float temperature : {0.0f, 1.0f}) {
        std::vector<ChoiceRow> rows;
        for (uint32_t id = 0; id < vocab; ++id) {
            ChoiceRow row{logits, choice_rule({.temperature = temperature, .top_p = 0.9f, .seed = id}, id)};
            row.rule.what |= gpu::kRuleMasked;
            row.mask.assign(mask_words(vocab), 0);
            row.mask[id / 32] = 1u << (id % 32);
            rows.push_back(std::move(row));
        }
        const auto found = device_.choose(rows);
        for (uint32_t id = 0; id < vocab; ++id) ASSERT_EQ(found[id].token, static_cast<int32_t>(id));
    }
    ChoiceRow nothing{logits, choice_rule({.temperature = 1.0f}, 0)}, greedy = nothing;
    nothing.rule.what |= gpu::kRuleMasked;
    nothing.mask.assign(mask_words(vocab), 0);
    nothing.mask.back() = ~0u << (vocab % 32);
    greedy = nothing;
    greedy.rule.what = gpu::kRuleMasked;
    for (const auto& found : device_.choose({nothing, greedy})) EXPECT_EQ(found.token, gpu::kNothingAllowed);
}

TEST_F(DeviceDraw, WhatLeavesNoTokenIsSaid) {
    ChoiceRow row{random_row(100), choice_rule({.temperature = 1.0f}, 0)};
    row.allowed = {7};
    row.changes = {{7, gpu::kChangeIsEnd, 0.0f, 0.0f}};
    add_changes({}, row.rule);
    row.rule.what |= gpu::kRuleBansEnds;
    ChoiceRow greedy = row, open = row;
    greedy.rule.what &= ~gpu::kRuleDraws;
    open.rule.what &= ~gpu::kRuleBansEnds;
    const auto found = device_.choose({row, greedy, open});
    EXPECT_EQ(found[0].token, gpu::kNothingAllowed);
    EXPECT_EQ(found[1].token, gpu::kNothingAllowed);
    EXPECT_EQ(found[2].token, 7);
}

TEST_F(DeviceDraw, LogprobsAreThoseOfTheModelsOwnDistribution) {
    for (const uint32_t vocab : {5u, 300u, 20001u}) {
        std::vector<ChoiceRow> rows;
        for (uint32_t i = 0; i < 8; ++i) {
            ChoiceRow row{random_row(vocab), choice_rule({.temperature = i % 3 == 0 ? 0.0f : 1.5f, .seed = i}, i)};
            row.rule.what |= gpu::kRuleLogprobs;
            row.rule.n_top = i % 4 == 3 ? 0 : 1 + random_() % gpu::kTopTokensMax;
            if (i % 2 == 0) {
                add_changes({}, row.rule);
                for (uint32_t token = 0; token < vocab; token += 2)
                    row.changes.push_back({token, 0, uniform(-5.0f, 5.0f), 0.0f});
                if (row.changes.size() > 500) row.changes.resize(500);
            }
            rows.push_back(std::move(row));
        }
        const auto found = device_.choose(rows);
        for (size_t i = 0; i < rows.size(); ++i) {
            const gpu::ChoiceLogprobs& own = found[i].logprobs;
            ASSERT_EQ(found[i].token, on_host(rows[i]));
            const proto::TokenLogprobs expected = logprobs_of(rows[i].logits, found[i].token, rows[i].rule.n_top);
            const std::string what = "row " + std::to_string(i) + ", random seed " + std::to_string(seed_);
            // A float sum of up to 20001 terms in any order, and one rounding of numbers up to 200.
            constexpr float kTolerance = 5e-5f;
            EXPECT_NEAR(own.logprob, expected.token.logprob, kTolerance) << what;
            EXPECT_EQ(own.rank, expected.token.rank) << what;
            ASSERT_EQ(own.n_top, expected.top.size()) << what;
            for (size_t k = 0; k < expected.top.size(); ++k) {
                EXPECT_EQ(own.tokens[k], static_cast<uint32_t>(expected.top[k].id)) << what;
                EXPECT_NEAR(own.logprobs[k], expected.top[k].logprob, kTolerance) << what;
            }
        }
    }
}

TEST_F(DeviceDraw, OfTiesAtTheCutTheLowestIdsStay) {
    std::vector<float> logits(3000, 1.0f);
    for (uint32_t i = 0; i < 3000; i += 100) logits[i] = 2.0f;  // 30 of them
    std::vector<ChoiceRow> rows;
    for (uint32_t position = 0; position < 64; ++position) {
        SamplingParams params;
        if (position % 2 == 0)
            params.top_k = 12;
        else
            params.top_p = 0.02f;
        rows.push_back({logits, choice_rule(params, position)});
    }
    ASSERT_NO_FATAL_FAILURE(expect_same(rows, "ties"));
    for (const auto& found : device_.choose(rows)) EXPECT_LT(found.token, 2900);
}

TEST_F(DeviceDraw, ExtremeLogitsAndTemperaturesAreNoExceptions) {
    std::vector<ChoiceRow> rows;
    for (const float scale : {1e-30f, 1.0f, 1e10f, 1e38f}) {
        for (const float temperature : {1e-37f, 1e-3f, 1.0f, 2.0f}) {
            std::vector<float> logits(500);
            for (float& logit : logits) logit = uniform(-scale, scale);
            logits[17] = logits[18] = scale;
            rows.push_back({logits, choice_rule({.temperature = temperature, .top_p = 0.9f, .seed = 3}, 7)});
        }
    }
    expect_same(rows, "extremes");
}

TEST_F(DeviceDraw, RowsWithoutADrawKeepTheirArgmaxAndBrokenOnesTheirFailure) {
    std::vector<ChoiceRow> rows(4, {random_row(1000), choice_rule({.temperature = 1.5f, .seed = 1}, 3)});
    rows[1].rule = gpu::ChoiceRule{};
    rows[2].logits[500] = NAN;
    rows[3].logits[10] = INFINITY;
    const auto found = device_.choose(rows);
    EXPECT_EQ(found[0].token, on_host(rows[0]));
    EXPECT_EQ(found[1].token, std::ranges::max_element(rows[1].logits) - rows[1].logits.begin());
    EXPECT_EQ(found[2].token, -1);
    EXPECT_EQ(found[3].token, -1);
    for (const auto& each : found) EXPECT_EQ(each.sampled, each.token) << "what the next step reads";
}

}  // namespace
}  // namespace lorad::model::device_draw_test
