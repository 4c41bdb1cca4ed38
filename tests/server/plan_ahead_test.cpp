#include "server/engine/plan_ahead.h"

#include <gtest/gtest.h>

namespace lorad::server {
namespace {

// A device and an engine that plans for it: what is learned of a step is what it took with all that the device waited.
struct Device {
    PlanAhead plan_ahead;
    double learned_s = 0;
    double idle_s = 0, rested_s = 0;

    void steps(int n, double step_s, double planning_s) {
        for (int i = 0; i < n; ++i) {
            const double rest_s = plan_ahead.rest_s(learned_s, 0);
            const double submitted_s = rest_s + planning_s;
            rested_s += rest_s;
            idle_s += std::max(submitted_s - step_s, 0.0);
            if (rest_s > 0) plan_ahead.observe(rest_s, std::max(step_s - submitted_s, 0.0));
            learned_s = std::max(step_s, submitted_s);
        }
    }
};

TEST(PlanAhead, RestsUntilTwoMillisecondsOrATenthOfTheStepAreLeft) {
    const PlanAhead plan_ahead;
    EXPECT_DOUBLE_EQ(plan_ahead.rest_s(0.010, 0.001), 0.007);
    EXPECT_DOUBLE_EQ(plan_ahead.rest_s(0.100, 0.020), 0.070);
    EXPECT_EQ(plan_ahead.rest_s(0.010, 0.009), 0);
    EXPECT_EQ(plan_ahead.rest_s(0, 0), 0);
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
}

TEST(PlanAhead, AnEngineThatIsSlowerThanItsDeviceDoesNotRest) {
    Device device;
    device.steps(100, 0.003, 0.005);
    const double rested_s = device.rested_s;
    device.steps(1000, 0.003, 0.005);
    EXPECT_LT(device.rested_s - rested_s, 0.1) << "of 5 s";
}

}  // namespace
}  // namespace lorad::server
