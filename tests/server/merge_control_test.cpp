#include "server/engine/merge_control.h"

#include <random>

#include <gtest/gtest.h>

#include "proto/base/log.h"
#include "tests/server/fake_runner.h"
#include "tests/support/soon.h"

namespace lorad::server::merge_control_test {
namespace {

using lorad::testing::soon;
using std::chrono::milliseconds;

struct Fixture {
    explicit Fixture(const MergeControlOptions& options = {.policy = {.n_window_rows = 400}})
        : runner(64),
          metrics({"base", model::kBlockTokens, 64, 4, "fake", "none", true}),
          engine(runner, metrics, {{128, 8, model::kBlockTokens}, 64, 100, 1}),
          control(engine, [this](std::span<const LoraUse> uses) { return merge(uses); }, options) {
        set_log_level(LogLevel::kError);
        engine.start();
    }
    ~Fixture() { engine.drain(milliseconds(10000)); }

    Result<std::shared_ptr<const model::MergedWeights>> merge(std::span<const LoraUse> uses) {
        if (fails) return make_error(ErrorCode::kOutOfMemory, "the merged weights need 1000 bytes");
        EXPECT_TRUE(last.expired()) << "two copies at a time";
        runner.merged_slot_ = uses.front().slot;
        auto made = std::make_shared<const model::MergedWeights>();
        last = made;
        return made;
    }
    MergeMix mix(uint32_t slot) {
        lease = std::make_shared<int>(0);
        return {"slot" + std::to_string(slot), {{slot, 1.0f}}, lease};
    }
    // Runs requests side by side and compares all their tokens.
    void answer(std::vector<uint32_t> slots, uint32_t n_tokens = 60) {
        std::vector<std::shared_ptr<TokenStream>> streams;
        std::vector<TokenId> prompt = {3, 1, 4, 1, 5};
        for (const uint32_t slot : slots) {
            Request request;
            request.prompt = prompt;
            request.n_tokens_max = n_tokens;
            request.sampling.temperature = 0.0f;
            if (slot != kNoAdapterSlot) request.adapter.uses = {{slot, 1.0f}};
            request.stream = std::make_shared<TokenStream>(n_tokens);
            streams.push_back(request.stream);
            ASSERT_TRUE(engine.submit(std::move(request)).ok());
        }
        for (size_t i = 0; i < slots.size(); ++i) {
            std::vector<TokenId> got;
            while (true) {
                TokenStream::Batch batch = streams[i]->pop(milliseconds(30000));
                got.insert(got.end(), batch.tokens.begin(), batch.tokens.end());
                if (batch.end || batch.tokens.empty()) break;
            }
            EXPECT_EQ(got, fake_continuation(prompt, slots[i], n_tokens));
        }
        EXPECT_EQ(runner.n_broken(), 0u);
    }

    FakeRunner runner;
    Metrics metrics;
    Engine engine;
    std::weak_ptr<const model::MergedWeights> last;
    std::shared_ptr<const void> lease;
    std::atomic<bool> fails{false};
    MergeControl control;
};

TEST(MergeControl, StepsOfTheMixAloneRunOnTheMergedWeights) {
    Fixture f;
    const auto state = f.control.merge(f.mix(2));
    ASSERT_TRUE(state.ok());
    EXPECT_EQ(f.control.merged()->name, "slot2");
    f.answer({2, 2, 2});
    f.answer({1, kNoAdapterSlot});
    f.engine.drain(milliseconds(10000));
    EXPECT_GE(f.runner.n_merged_rows(), 3u * 60);
    EXPECT_GE(f.runner.n_unmerged_rows(), 2u * 60);
}

TEST(MergeControl, StepsThatOthersShareRunUnmerged) {
    Fixture f;
    ASSERT_TRUE(f.control.merge(f.mix(2)).ok());
    for (const uint32_t other : {1u, 3u, kNoAdapterSlot}) f.answer({2, other, 2});
}

TEST(MergeControl, WhatRunsGoesOnWithTheSameTokensWhileMergesComeAndGo) {
    Fixture f;
    f.runner.step_time_ = std::chrono::microseconds(100);
    std::atomic<bool> stop{false};
    std::thread merger([&] {
        for (uint32_t i = 0; !stop; ++i) {
            const auto mix = f.mix(1 + i % 2);
            // The fake checks the slot of merged rows, so the slot may only change while nothing is merged.
            EXPECT_TRUE(f.control.merge(mix).ok());
            std::this_thread::sleep_for(milliseconds(3));
            f.control.clear(mix.name);
        }
    });
    // However the machine shares its time among the threads: until merges came and went, and their rows with them.
    const auto has_seen_enough = [&] { return f.control.n_merges() > 2 && f.runner.n_merged_rows() > 0; };
    for (int i = 0; i < 10 || (!has_seen_enough() && i < 500); ++i) {
        f.answer({1, 1}, 200);
        f.answer({1, 2, kNoAdapterSlot}, 100);
        f.answer({2}, 200);
    }
    stop = true;
    merger.join();
    f.engine.drain(milliseconds(10000));
    EXPECT_GT(f.runner.n_merged_rows(), 0u);
    EXPECT_GT(f.control.n_merges(), 2u);
}

TEST(MergeControl, TheNextTakesThePlaceOfTheLast) {
    Fixture f;
    ASSERT_TRUE(f.control.merge(f.mix(2)).ok());
    ASSERT_TRUE(f.control.merge(f.mix(1)).ok());
    EXPECT_EQ(f.control.merged()->name, "slot1");
    f.answer({1});
    f.answer({2});
}

TEST(MergeControl, GivesUpCopyAndLeaseWhenCleared) {
    Fixture f;
    ASSERT_TRUE(f.control.merge(f.mix(2)).ok());
    const std::weak_ptr<const void> lease = std::exchange(f.lease, nullptr);
    f.control.clear("slot1");
    EXPECT_FALSE(f.last.expired());
    EXPECT_FALSE(lease.expired());
    f.control.clear("slot2");
    EXPECT_TRUE(f.last.expired());
    EXPECT_TRUE(soon([&] { return lease.expired(); }));
    EXPECT_EQ(f.control.merged(), std::nullopt);
    f.answer({2});
}

TEST(MergeControl, MergesByItselfWhatDominatesAndUnmergesWhenOthersCome) {
    Fixture f;
    ASSERT_TRUE(f.control.set_auto(f.mix(3)).ok());
    f.answer({3, 3}, 100);
    EXPECT_EQ(f.control.merged(), std::nullopt);
    f.answer({3, 3, 3, 3}, 400);
    ASSERT_TRUE(soon([&] { return f.control.merged().has_value(); }));
    EXPECT_TRUE(f.control.merged()->is_automatic);
    for (int i = 0; i < 6; ++i) f.answer({3, 1, kNoAdapterSlot}, 300);
    EXPECT_TRUE(soon([&] { return !f.control.merged(); }));
    f.engine.drain(milliseconds(10000));
}

TEST(MergeControl, LeavesWhatWasMergedByRequestAlone) {
    Fixture f;
    ASSERT_TRUE(f.control.set_auto(f.mix(3)).ok());
    ASSERT_TRUE(f.control.merge(f.mix(1)).ok());
    f.answer({3, 3, 3, 3}, 800);
    EXPECT_EQ(f.control.merged()->name, "slot1");
    f.control.clear("slot1");
    EXPECT_TRUE(soon([&] { return f.control.merged() && f.control.merged()->name == "slot3"; }));
}

TEST(MergeControl, TellsWhereThereIsNoRoomAndGoesOnUnmerged) {
    Fixture f;
    f.fails = true;
    const auto refused = f.control.merge(f.mix(2));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
    ASSERT_TRUE(f.control.set_auto(f.mix(3)).ok());
    f.answer({3, 3, 3, 3}, 800);
    EXPECT_EQ(f.control.merged(), std::nullopt);
    EXPECT_EQ(f.control.n_merges(), 0u);
}

TEST(MergeControl, MergesNothingWhereRowsMustNotDependOnTheirStep) {
    Fixture f({.batch_invariant = true});
    const auto refused = f.control.merge(f.mix(2));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidLoadPolicy);
    EXPECT_FALSE(f.control.set_auto(f.mix(2)).ok());
}

}  // namespace
}  // namespace lorad::server::merge_control_test
