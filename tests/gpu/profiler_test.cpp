#include "gpu/profiler.h"

#include <limits>

#include "gpu/kernels/self_test.params.h"
#include "gpu/pipeline.h"
#include "tests/gpu/gpu_fixture.h"

namespace lorad::gpu::testing::profiler_test {
namespace {

class ProfilerTest : public GpuTest {
  protected:
    // n dispatches called a, b, a, b, ... of 1 and 200 workgroups.
    CommandBuffer record(uint32_t n, bool timestamps, bool span = false) {
        auto recorder = must(Recorder::begin(device(), {.timestamps = timestamps, .span_timestamps = span}));
        for (uint32_t i = 0; i < n; ++i) {
            const bool b = i % 2 == 1;
            recorder.dispatch(kernel_, SelfTestParams{0, counter_.address(), 0, 0, 0, 0}, b ? 200 : 1, 1, 1,
                              {.name = b ? "b" : "a", .bytes = 10, .flops = b ? 5u : 0u});
        }
        return must(std::move(recorder).end());
    }

    Kernel kernel_ = must(Kernel::create(device(), {.module = "self_test", .constants = {64, kSelfTestCount}}));
    Buffer counter_ = make_buffer(4);
};

TEST_F(ProfilerTest, EveryDispatchHasATimeAndTheSumFitsTheClock) {
    const CommandBuffer recording = record(1300, true);  // more than two query pools hold
    const auto begin = std::chrono::steady_clock::now();
    run(recording);
    const std::chrono::duration<double, std::micro> wall = std::chrono::steady_clock::now() - begin;
    const auto times = must(read_dispatch_times(device(), recording));
    ASSERT_EQ(times.size(), 1300u);
    double sum = 0;
    for (size_t i = 0; i < times.size(); ++i) {
        EXPECT_EQ(times[i].name, i % 2 == 1 ? "b" : "a");
        EXPECT_EQ(times[i].bytes, 10u);
        EXPECT_GE(times[i].us, 0.0);
        sum += times[i].us;
    }
    EXPECT_GT(sum, 0.0);
    EXPECT_LE(sum, wall.count());  // each interval ends before the next begins
}

TEST_F(ProfilerTest, AResubmittedRecordingCanBeReadAgain) {
    const CommandBuffer recording = record(4, true);
    for (int i = 0; i < 3; ++i) {
        run(recording);
        EXPECT_EQ(must(read_dispatch_times(device(), recording)).size(), 4u);
    }
}

TEST_F(ProfilerTest, ASpanIsOneTimeAroundTheWholeRecording) {
    const CommandBuffer few = record(1, false, true), many = record(2000, false, true);
    // the least of some: what else the machine does makes single ones long
    double short_us = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 5; ++i) {
        run(few);
        const auto short_times = must(read_dispatch_times(device(), few));
        ASSERT_EQ(short_times.size(), 1u);
        short_us = std::min(short_us, short_times[0].us);
    }
    for (int i = 0; i < 2; ++i) {  // the second time nothing is compiled any more
        const auto begin = std::chrono::steady_clock::now();
        run(many);
        const std::chrono::duration<double, std::micro> wall = std::chrono::steady_clock::now() - begin;
        const auto long_times = must(read_dispatch_times(device(), many));
        ASSERT_EQ(long_times.size(), 1u);
        EXPECT_EQ(long_times[0].name, "recording");
        EXPECT_LE(long_times[0].us, wall.count());
        if (i == 1) {
            EXPECT_GT(long_times[0].us, short_us);
        }
    }
}

TEST_F(ProfilerTest, WithoutTimestampsThereIsNothingToRead) {
    const CommandBuffer recording = record(4, false);
    run(recording);
    EXPECT_TRUE(must(read_dispatch_times(device(), recording)).empty());
}

TEST_F(ProfilerTest, ReadingBeforeTheRecordingRanIsAnError) {
    const CommandBuffer recording = record(4, true);
    EXPECT_FALSE(read_dispatch_times(device(), recording).ok());
}

TEST(ProfilerSums, AreByNameAndBytesSlowestFirst) {
    const auto sums = sum_by_kernel({{"a", 100, 2, 3.0}, {"b", 10, 20, 30.0}, {"a", 100, 200, 4.0}, {"a", 1, 2, 5.0}});
    ASSERT_EQ(sums.size(), 3u);
    EXPECT_EQ(sums[0].name, "b");
    EXPECT_EQ(sums[1].name, "a");
    EXPECT_EQ(sums[1].n_calls, 2u);
    EXPECT_EQ(sums[1].bytes, 200u);
    EXPECT_EQ(sums[1].flops, 202u);
    EXPECT_DOUBLE_EQ(sums[1].us, 7.0);
    EXPECT_EQ(sums[2].name, "a");
    EXPECT_EQ(sums[2].bytes, 1u);
}

}  // namespace
}  // namespace lorad::gpu::testing::profiler_test
