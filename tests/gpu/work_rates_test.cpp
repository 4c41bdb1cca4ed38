#include "gpu/facts/work_rates.h"

#include <cmath>

#include <gtest/gtest.h>

namespace lorad::gpu::testing::work_rates_test {
namespace {

TEST(WorkRates, TheFirstGuessIsTooSlowForUsualDevicesOfTheKind) {
    const Work teraflop{.flops = 1e12, .n = 1};
    EXPECT_GT(WorkRates(DeviceSpeed::kMatrices).us_of(teraflop), 1e12 / 60e6);
    EXPECT_GT(WorkRates(DeviceSpeed::kDiscrete).us_of(teraflop), 1e12 / 5e6);
    EXPECT_GT(WorkRates(DeviceSpeed::kOther).us_of(teraflop), 1e12 / 1e6);
    EXPECT_GT(WorkRates(DeviceSpeed::kCpu).us_of(teraflop), 1e12 / 50e3);
}

TEST(WorkRates, WhatTakesLongerThanThoughtCountsAtOnce) {
    WorkRates rates(DeviceSpeed::kDiscrete);
    const Work work{.flops = 1e10, .n = 1};
    rates.learn(work, 5 * rates.us_of(work));
    const double once = rates.us_of(work);
    EXPECT_NEAR(once, 5 * (1e10 / 1e6 + 4), once * 0.01);
    EXPECT_EQ(rates.bytes_per_us(), WorkRates(DeviceSpeed::kDiscrete).bytes_per_us()) << "it moved nothing";
}

TEST(WorkRates, WhatTakesLessTimeCountsByAndBy) {
    WorkRates rates(DeviceSpeed::kDiscrete);
    const Work work{.bytes = 1e9, .n = 1};
    const double first = rates.us_of(work), true_us = first / 10;
    rates.learn(work, true_us);
    EXPECT_GT(rates.us_of(work), first / 2.1);
    for (int i = 0; i < 12; ++i) rates.learn(work, true_us);
    EXPECT_NEAR(rates.us_of(work), true_us, true_us * 0.05);
    EXPECT_EQ(rates.flops_per_us(), WorkRates(DeviceSpeed::kDiscrete).flops_per_us()) << "it computed nothing";
}

TEST(WorkRates, TimesThatCannotBeAreNotTaken) {
    WorkRates rates(DeviceSpeed::kDiscrete);
    const std::string before = rates.text();
    for (const double us : {0.0, -1.0, 61e6, std::nan("")}) rates.learn({.flops = 1e9, .n = 1}, us);
    rates.learn({}, 5);
    EXPECT_EQ(rates.text(), before);
}

TEST(WorkRates, TheNextStartTakesThemFromText) {
    WorkRates rates(DeviceSpeed::kCpu), next(DeviceSpeed::kCpu);
    rates.learn({.flops = 1e9, .bytes = 1e7, .n = 1}, 12345);
    EXPECT_TRUE(next.take(rates.text()));
    EXPECT_EQ(next.text(), rates.text());
    EXPECT_NE(next.text(), WorkRates(DeviceSpeed::kCpu).text());
    for (const char* text : {"", "5", "5 ", "5 x", "5 6 7", "0 6", "-5 6", "inf 6", "nan 6", "5  6"})
        EXPECT_FALSE(next.take(text)) << text;
    EXPECT_EQ(next.text(), rates.text());
}

}  // namespace
}  // namespace lorad::gpu::testing::work_rates_test
