// Background work beside those who are served: whose tokens stay what they are, and how long it may have the device.
#include <random>

#include <gtest/gtest.h>

#include "server/engine/background_budget.h"
#include "tests/server/engine_fixture.h"

namespace lorad::server {
namespace {

class CountedWork final : public BackgroundWork {
  public:
    bool has_work() const override { return n_left > 0; }
    double run(std::chrono::microseconds budget, bool) override {
        budgets.push_back(budget);
        --n_left;
        return 0;
    }
    std::atomic<int> n_left{0};
    std::vector<std::chrono::microseconds> budgets;
};

EngineOptions options_with(BackgroundWork* work) {
    EngineOptions options;
    options.limits = {128, 8, model::kBlockTokens};
    options.n_kv_blocks = 64;
    options.n_waiting_max = 100;
    options.background = work;
    return options;
}

std::vector<std::vector<TokenId>> tokens_of_twelve(EngineFixture& fixture) {
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (uint32_t i = 0; i < 12; ++i)
        streams.push_back(fixture.submit(prompt_of(5 + 9 * i, i), 20 + i, i % 3 == 0 ? kNoAdapterSlot : i % 3));
    fixture.run_until_idle();
    std::vector<std::vector<TokenId>> tokens;
    for (auto& stream : streams) tokens.push_back(stream->take().tokens);
    return tokens;
}

TEST(BackgroundWork, ServedTokensAreTheSameWithAndWithout) {
    EngineFixture quiet(options_with(nullptr));
    CountedWork work;
    work.n_left = 1'000'000;
    EngineFixture beside(options_with(&work));
    EXPECT_EQ(tokens_of_twelve(quiet), tokens_of_twelve(beside));
    EXPECT_FALSE(work.budgets.empty());
}

TEST(BackgroundWork, AnIdleEngineDoesAllOfIt) {
    CountedWork work;
    EngineFixture fixture(options_with(&work));
    fixture.engine.start();
    work.n_left = 50;
    fixture.engine.wake();
    for (int i = 0; i < 1000 && work.n_left > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    fixture.engine.drain(std::chrono::milliseconds(100));
    EXPECT_EQ(work.n_left, 0);
    ASSERT_EQ(work.budgets.size(), 50u);
    EXPECT_EQ(work.budgets[0], std::chrono::microseconds(10'000));
}

// Steps of 10 ms, and pieces of one length.
struct Simulated {
    double background_s = 0, worst_s = 0;
    int n_late = 0, n_steps = 20'000;
};
Simulated simulate(BackgroundShare share, double piece_s) {
    constexpr double kStep = 0.01;
    BackgroundBudget background(share);
    Simulated out;
    bool is_quiet = true;
    for (int i = 0; i < out.n_steps; ++i) {
        const double budget_s = background.after_step(is_quiet ? kStep : kStep * 1.3, is_quiet);
        double taken_s = 0;
        while (budget_s > 0 && (taken_s == 0 || taken_s + piece_s <= budget_s)) taken_s += piece_s;
        if (budget_s > 0) background.ran(budget_s, taken_s);
        is_quiet = taken_s == 0;
        out.background_s += taken_s;
        out.worst_s = std::max(out.worst_s, taken_s);
        out.n_late += taken_s > (share.latency_factor - 1) * kStep * 1.01 ? 1 : 0;
    }
    return out;
}

TEST(BackgroundBudget, SmallPiecesKeepTheBoundAndUseIt) {
    const Simulated out = simulate({0.5, 1.25}, 70e-6);
    EXPECT_EQ(out.n_late, 0);
    EXPECT_LE(out.worst_s, 0.0025 + 1e-9);
    EXPECT_GT(out.background_s / (out.n_steps * 0.01), 0.15);  // seven steps of eight, a quarter of each
}

TEST(BackgroundBudget, TheShareIsACap) {
    const Simulated out = simulate({0.1, 3.0}, 70e-6);
    const double share = out.background_s / (out.background_s + out.n_steps * 0.01);
    EXPECT_NEAR(share, 0.1, 0.01);
    EXPECT_EQ(simulate({0.0, 1.25}, 70e-6).background_s, 0.0);
}

TEST(BackgroundBudget, PiecesThatFitNoBoundRunSoRarelyThatThe99thPercentileStays) {
    const Simulated out = simulate({0.5, 1.25}, 0.05);
    EXPECT_GT(out.background_s, 0.0);
    EXPECT_LT(out.n_late, out.n_steps / 100);
}

// How long a turn takes is a guess, which may be wrong by a fifth, or by half.
TEST(BackgroundBudget, WrongGuessesStayFewerThanOneOfAHundred) {
    for (const double error : {0.2, 0.5}) {
        constexpr double kStep = 0.005;
        constexpr int kSteps = 20'000;
        BackgroundBudget background({0.5, 1.25});
        std::mt19937 random(3);
        std::uniform_real_distribution<double> wrong(1 - error, 1 + error);
        double background_s = 0;
        int n_late = 0;
        for (int i = 0; i < kSteps; ++i) {
            const double budget_s = background.after_step(kStep, true);
            if (budget_s <= 0) continue;
            const double taken_s = budget_s * wrong(random);
            background.ran(budget_s, taken_s);
            background_s += taken_s;
            n_late += taken_s > 0.25 * kStep ? 1 : 0;
        }
        EXPECT_LT(n_late, kSteps / 100) << error;
        EXPECT_GT(background_s, 0.12 * kSteps * kStep) << error;
    }
}

}  // namespace
}  // namespace lorad::server
