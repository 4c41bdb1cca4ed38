#include "server/engine/plan_ahead.h"

#include <gtest/gtest.h>

namespace lorad::server::plan_ahead_test {
namespace {

const PlanAhead::Kind kDecodes{8, 0, false};

// A device and an engine that plans for it.
struct Device {
    PlanAhead plan_ahead;
    double idle_s = 0, rested_s = 0;

    void steps(int n, double step_s, double planning_s, const PlanAhead::Kind& kind = kDecodes) {
        for (int i = 0; i < n; ++i) {
            const double rest_s = plan_ahead.rest_s(kind, 0);
            const double submitted_s = rest_s + planning_s;
            rested_s += rest_s;
            idle_s += std::max(submitted_s - step_s, 0.0);
            plan_ahead.observe(kind, std::max(step_s, submitted_s), rest_s, std::max(step_s - submitted_s, 0.0));
        }
    }
};

TEST(PlanAhead, RestsUntilTwoMillisecondsOrATenthOfTheShortestOfTheLastStepsAreLeft) {
    PlanAhead plan_ahead;
    EXPECT_EQ(plan_ahead.rest_s(kDecodes, 0), 0) << "nothing is known";
    for (const double seconds : {0.010, 0.012, 0.030, 0.011}) plan_ahead.observe(kDecodes, seconds, 0, 0);
    EXPECT_DOUBLE_EQ(plan_ahead.rest_s(kDecodes, 0.001), 0.007);
    EXPECT_EQ(plan_ahead.rest_s(kDecodes, 0.009), 0);
    const PlanAhead::Kind prompts{2048, 3, false};
    EXPECT_EQ(plan_ahead.rest_s(prompts, 0), 0) << "nothing is known of such steps";
    for (int i = 0; i < 4; ++i) plan_ahead.observe(prompts, 0.100, 0, 0);
    EXPECT_DOUBLE_EQ(plan_ahead.rest_s(prompts, 0.020), 0.070);
    EXPECT_EQ(plan_ahead.rest_s({2048, 3, true}, 0), 0);
    for (int i = 0; i < 4; ++i) plan_ahead.observe(kDecodes, 0.020, 0, 0);
    EXPECT_DOUBLE_EQ(plan_ahead.rest_s(kDecodes, 0), 0.018) << "the last four";
}

TEST(PlanAhead, TheDeviceIsNotKeptWaiting) {
    Device device;
    device.steps(1000, 0.010, 0.0005);
    EXPECT_EQ(device.idle_s, 0);
    EXPECT_GT(device.rested_s, 7.0);
}

TEST(PlanAhead, APlanThatTakesLongIsBegunEarlier) {
    Device device;
    device.steps(5000, 0.020, 0.006);
    EXPECT_LT(device.idle_s, 0.02 * 5000 * 0.01) << "of 100 s";
    EXPECT_GT(device.rested_s, 10.0);
}

TEST(PlanAhead, ShorterStepsAreFollowed) {
    Device device;
    device.steps(100, 0.100, 0.0005);
    device.steps(100, 0.005, 0.0005);
    const double idle_s = device.idle_s;
    device.steps(1000, 0.005, 0.0005);
    EXPECT_LT(idle_s, 0.2);
    EXPECT_LT(device.idle_s - idle_s, 0.001);
    EXPECT_GT(device.rested_s, 100 * 0.08 + 500 * 0.002) << "it rests again";
}

TEST(PlanAhead, RestsAgainAfterPlansThatCameTooLate) {
    Device device;
    device.steps(50, 0.006, 0.0005);
    device.steps(1, 0.006, 0.030);
    device.steps(5, 0.006, 0.0005);
    device.steps(1, 0.006, 0.030);
    device.steps(1000, 0.006, 0.0005);
    const double rested_s = device.rested_s;
    device.steps(1000, 0.006, 0.0005);
    EXPECT_GT(device.rested_s - rested_s, 3.0);
}

TEST(PlanAhead, StepsThatWereSlowOnceDoNotKeepTheDeviceWaiting) {
    Device device;
    for (int i = 0; i < 4; ++i) device.plan_ahead.observe(kDecodes, 20.0, 0, 0);
    EXPECT_DOUBLE_EQ(device.plan_ahead.rest_s(kDecodes, 0), 0.1) << "at most";
    device.steps(1000, 0.010, 0.0005);
    EXPECT_LT(device.idle_s, 2.0);
    const double idle_s = device.idle_s, rested_s = device.rested_s;
    device.steps(1000, 0.010, 0.0005);
    EXPECT_EQ(device.idle_s, idle_s);
    EXPECT_GT(device.rested_s - rested_s, 5.0);
}

TEST(PlanAhead, AnEngineThatIsSlowerThanItsDeviceDoesNotRest) {
    Device device;
    device.steps(100, 0.003, 0.005);
    const double rested_s = device.rested_s;
    device.steps(1000, 0.003, 0.005);
    EXPECT_LT(device.rested_s - rested_s, 0.1) << "of 5 s";
}

}  // namespace
}  // namespace lorad::server::plan_ahead_test
