#include "server/engine/merge_policy.h"

#include <random>

#include <gtest/gtest.h>

namespace lorad::server::merge_policy_test {
namespace {

using Wanted = std::optional<std::string>;

constexpr MergePolicyOptions kOptions{.n_window_rows = 1000, .promote_share = 0.8, .demote_share = 0.3};

// Steps of ten rows; "" are steps of the base or of several adapters.
void steps(MergePolicy& policy, std::string_view mix, int n) {
    for (int i = 0; i < n; ++i) policy.observe(mix, 10);
}

TEST(MergePolicy, MergesAnAdapterThatDominatesAWindow) {
    MergePolicy policy(kOptions);
    steps(policy, "a", 99);
    EXPECT_EQ(policy.wanted(), std::nullopt) << "too little was seen";
    steps(policy, "a", 1);
    EXPECT_EQ(policy.wanted(), Wanted("a"));
}

TEST(MergePolicy, MergesNothingWhereStepsAreMixed) {
    MergePolicy policy(kOptions);
    for (int i = 0; i < 1000; ++i) {
        policy.observe("a", 10);
        policy.observe("", 10);
    }
    EXPECT_EQ(policy.wanted(), std::nullopt);
}

TEST(MergePolicy, UnmergesWhenOthersCome) {
    MergePolicy policy(kOptions);
    steps(policy, "a", 200);
    ASSERT_EQ(policy.wanted(), Wanted("a"));
    steps(policy, "", 400);
    EXPECT_EQ(policy.wanted(), std::nullopt);
}

TEST(MergePolicy, GoesOverToAnotherThatDominates) {
    MergePolicy policy(kOptions);
    steps(policy, "a", 200);
    steps(policy, "b", 1000);
    EXPECT_EQ(policy.wanted(), Wanted("b"));
}

TEST(MergePolicy, StaysWhileTheShareIsBetweenTheThresholds) {
    MergePolicy policy(kOptions);
    int n_changes = 0;
    Wanted before;
    for (int i = 0; i < 2000; ++i) {
        // Half of the steps are all a's: too few to merge it, too many to unmerge it.
        policy.observe(i < 150 || i % 2 == 0 ? "a" : "", 10);
        n_changes += policy.wanted() != before;
        before = policy.wanted();
    }
    EXPECT_EQ(policy.wanted(), Wanted("a"));
    EXPECT_EQ(n_changes, 1);
}

TEST(MergePolicy, ChangesAtMostOnceInAWindowWhateverComes) {
    for (uint32_t seed = 1; seed <= 20; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937 random(seed);
        MergePolicy policy(kOptions);
        const char* mixes[] = {"", "a", "b", "c"};
        const char* mix = "";
        uint64_t n_rows = 0, last_change = 0;
        Wanted before;
        for (int i = 0; i < 20000; ++i) {
            if (random() % 150 == 0) mix = mixes[random() % 4];
            const uint32_t n = 1 + random() % 64;
            policy.observe(mix, n);
            n_rows += n;
            if (policy.wanted() == before) continue;
            EXPECT_GE(n_rows - last_change, kOptions.n_window_rows);
            last_change = n_rows;
            before = policy.wanted();
        }
        EXPECT_GT(last_change, 0u);
    }
}

TEST(MergePolicy, ForgetsWhatWasUnloaded) {
    MergePolicy policy(kOptions);
    steps(policy, "a", 200);
    ASSERT_EQ(policy.wanted(), Wanted("a"));
    policy.forget("b");
    EXPECT_EQ(policy.wanted(), Wanted("a"));
    policy.forget("a");
    EXPECT_EQ(policy.wanted(), std::nullopt);
    steps(policy, "a", 50);
    EXPECT_EQ(policy.wanted(), std::nullopt) << "as if it had never been seen";
}

}  // namespace
}  // namespace lorad::server::merge_policy_test
