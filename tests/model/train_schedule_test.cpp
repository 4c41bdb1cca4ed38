#include <cmath>

#include <gtest/gtest.h>

#include "model/train/schedule.h"

namespace lorad::model {
namespace {

TEST(TrainSchedule, WarmUpReachesTheRateAtItsLastStep) {
    const ScheduleSettings settings{
        .schedule = Schedule::kConstant, .learning_rate = 0.3, .n_steps = 10, .n_warmup_steps = 3};
    EXPECT_DOUBLE_EQ(learning_rate(settings, 0), 0.1);
    EXPECT_DOUBLE_EQ(learning_rate(settings, 2), 0.3);
    EXPECT_DOUBLE_EQ(learning_rate(settings, 9), 0.3);
}

TEST(TrainSchedule, WarmUpOfTransformersBeginsAtZero) {
    for (const Schedule schedule : {Schedule::kHfLinear, Schedule::kHfCosine}) {
        const ScheduleSettings settings{.schedule = schedule, .learning_rate = 0.3, .n_steps = 10, .n_warmup_steps = 3};
        EXPECT_EQ(learning_rate(settings, 0), 0.0);
        EXPECT_DOUBLE_EQ(learning_rate(settings, 1), 0.1);
        EXPECT_DOUBLE_EQ(learning_rate(settings, 3), 0.3);
    }
}

TEST(TrainSchedule, LinearAndCosineFallToZeroBehindTheLastStep) {
    ScheduleSettings settings{.schedule = Schedule::kLinear, .learning_rate = 1.0, .n_steps = 12, .n_warmup_steps = 2};
    EXPECT_DOUBLE_EQ(learning_rate(settings, 7), 0.5);
    EXPECT_DOUBLE_EQ(learning_rate(settings, 12), 0.0);
    EXPECT_DOUBLE_EQ(learning_rate(settings, 100), 0.0);
    settings.schedule = Schedule::kCosine;
    EXPECT_DOUBLE_EQ(learning_rate(settings, 7), 0.5);
    EXPECT_NEAR(learning_rate(settings, 4), (1.0 + std::cos(0.2 * 3.14159265358979)) / 2, 1e-12);
    EXPECT_DOUBLE_EQ(learning_rate(settings, 12), 0.0);
}

TEST(TrainSchedule, NamesAreReadBack) {
    for (const Schedule schedule :
         {Schedule::kConstant, Schedule::kLinear, Schedule::kCosine, Schedule::kHfLinear, Schedule::kHfCosine}) {
        EXPECT_EQ(schedule_named(name_of(schedule)), schedule);
    }
    EXPECT_FALSE(schedule_named("polynomial").has_value());
}

}  // namespace
}  // namespace lorad::model
