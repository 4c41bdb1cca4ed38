// Long work is cut into several submissions, with the same results.
#include <algorithm>

#include "gpu/command.h"
#include "gpu/facts/start_record.h"
#include "gpu/kernels/rows/gather_rows.params.h"
#include "gpu/kernels/self_test.params.h"
#include "gpu/pipeline.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/support/temp_dir.h"

namespace lorad::gpu::testing::submission_test {
namespace {

constexpr uint32_t kThreads = 32, kNumbers = 8192;
constexpr std::chrono::microseconds kBound = std::chrono::milliseconds(500);

// A device of its own, and some work on it that says how long it takes.
class Bench {
  public:
    explicit Bench(DeviceOptions options) {
        options.validation = true;
        device_ = must(Device::create(options));
        numbers_ = must(device_->create_buffer(kNumbers * 4, MemoryKind::kDeviceLocal, "test"));
        seen_ = must(device_->create_buffer(kNumbers * 4, MemoryKind::kHostReadback, "test"));
        for (const uint32_t mode : {kSelfTestScale, kSelfTestCount})
            kernels_.push_back(must(Kernel::create(*device_, {.module = "self_test", .constants = {kThreads, mode}})));
    }
    ~Bench() { EXPECT_EQ(device_->validation_message_count(), 0u); }

    Device& device() { return *device_; }

    // numbers = 1, then numbers = numbers * 3 + 1 so many times, each of which says that it does `flops`.
    CommandBuffer record(uint32_t n_times, uint64_t flops) {
        auto recorder = must(Recorder::begin(*device_));
        recorder.fill(numbers_, 0, kNumbers * 4, 1);
        recorder.barrier();
        for (uint32_t i = 0; i < n_times; ++i) {
            const SelfTestParams params{numbers_.address(), numbers_.address(), kNumbers, 3, 1, 0};
            recorder.dispatch(kernels_[0], params, kNumbers / kThreads, 1, 1, {.name = "scale", .flops = flops});
            recorder.barrier();
        }
        recorder.copy(numbers_, 0, seen_, 0, kNumbers * 4);
        return must(std::move(recorder).end());
    }
    // How many submissions it takes.
    uint64_t run(const CommandBuffer& recording) {
        const uint64_t before = device_->n_submissions();
        const CommandBuffer* const once[] = {&recording};
        must(device_->compute_queue().wait(must(device_->compute_queue().submit(once))));
        return device_->n_submissions() - before;
    }
    std::vector<uint32_t> numbers() const {
        std::vector<uint32_t> values(kNumbers);
        std::memcpy(values.data(), seen_.mapped().data(), kNumbers * 4);
        return values;
    }
    const Kernel& counting() const { return kernels_[1]; }
    const Buffer& seen() const { return seen_; }

  private:
    std::unique_ptr<Device> device_;
    Buffer numbers_, seen_;
    std::vector<Kernel> kernels_;
};

// Of a software device's first guess, which is 5 GFLOP/s; with slowness any device is that slow.
double slowness(double us_of_gigaflop) {
    const DeviceCapabilities& caps = shared_device().capabilities();
    return us_of_gigaflop / (caps.is_cpu ? 200e3 : caps.coopmat_f16 ? 200 : 1000);
}

TEST(Submissions, WorkThatTakesNoLongerThanTheBoundIsOne) {
    Bench bench({.submission_max = kBound, .slowness = slowness(200e3)});
    EXPECT_EQ(bench.run(bench.record(4, 100'000)), 1u);
}

TEST(Submissions, LongerWorkIsCutAndASlowerDeviceGetsMoreOfThem) {
    std::vector<uint32_t> want;
    uint64_t before = 0;
    for (const double us_of_gigaflop : {1e3, 400e3, 1600e3, 6400e3}) {
        SCOPED_TRACE(us_of_gigaflop);
        Bench bench({.submission_max = kBound, .slowness = slowness(us_of_gigaflop)});
        const CommandBuffer recording = bench.record(12, 300'000'000);
        EXPECT_EQ(recording.n_dispatches(), 12u);
        const uint64_t n = bench.run(recording);
        EXPECT_GT(n, before);
        // 12 dispatches of 0.3 GFLOP, at most 500 ms in each; these are not parted themselves
        EXPECT_GE(n, std::min(uint64_t{12}, static_cast<uint64_t>(12 * 0.3 * us_of_gigaflop / 500e3)));
        if (want.empty()) want = bench.numbers();
        EXPECT_EQ(bench.numbers(), want) << "the same bits";
        before = n;
    }
    uint32_t number = 1;
    for (int i = 0; i < 12; ++i) number = number * 3 + 1;
    EXPECT_EQ(want, std::vector<uint32_t>(kNumbers, number));
}

TEST(Submissions, WithoutABoundThereIsOne) {
    Bench bench({.submission_max = std::chrono::microseconds(0), .slowness = slowness(6400e3)});
    EXPECT_EQ(bench.run(bench.record(12, 300'000'000)), 1u);
}

TEST(Submissions, ADispatchThatCountsWithAtomicsIsNeverParted) {
    Bench bench({.submission_max = kBound, .slowness = slowness(200e3)});
    auto recorder = must(Recorder::begin(bench.device()));
    recorder.fill(bench.seen(), 0, 4, 0);
    recorder.barrier();
    const SelfTestParams params{0, bench.seen().address(), 0, 0, 0, 0};
    recorder.dispatch(bench.counting(), params, 16, 1, 1, {.name = "count", .flops = 100'000'000'000});
    EXPECT_LE(bench.run(must(std::move(recorder).end())), 2u);
    EXPECT_EQ(bench.numbers()[0], 16 * kThreads);
}

// A dispatch of gather_rows, whose workgroups each copy a row.
TEST(Submissions, ADispatchThatIsTooLongForOneIsPartedByWorkgroups) {
    constexpr uint32_t kRows = 1000, kWords = 4;
    std::vector<uint32_t> want;
    for (const uint64_t flops : {uint64_t{1000}, uint64_t{40'000'000'000}}) {
        Bench bench({.submission_max = kBound, .slowness = slowness(200e3)});
        Device& device = bench.device();
        const Kernel gather = must(Kernel::create(device, {.module = "gather_rows", .constants = {kThreads}}));
        const Buffer host = must(device.create_buffer(64 + kRows * 8, MemoryKind::kHostUpload, "test"));
        const Buffer from = must(device.create_buffer(kRows * kWords * 16, MemoryKind::kHostUpload, "test"));
        const Buffer to = must(device.create_buffer(kRows * kWords * 16, MemoryKind::kHostReadback, "test"));
        auto* words = reinterpret_cast<uint32_t*>(host.mapped().data());
        words[0] = kRows;
        for (uint32_t i = 0; i < kRows; ++i) words[16 + 2 * i] = (i * 7) % kRows;
        auto* numbers = reinterpret_cast<uint32_t*>(from.mapped().data());
        for (uint32_t i = 0; i < kRows * kWords * 4; ++i) numbers[i] = i * 2654435761u;
        const GatherRowsParams params{host.address(), host.address() + 64, from.address(), to.address(), kWords, 0};
        auto recorder = must(Recorder::begin(device));
        recorder.fill(to, 0, to.size(), 0);
        recorder.barrier();
        recorder.dispatch(gather, params, kRows, 1, 1, {.name = "gather", .flops = flops});
        const CommandBuffer recording = must(std::move(recorder).end());
        EXPECT_EQ(recording.n_dispatches(), 1u);
        // 40 GFLOP of 200 ms each are 8 s
        const uint64_t n = bench.run(recording);
        if (flops == 1000) {
            EXPECT_EQ(n, 1u);
        } else {
            EXPECT_GE(n, 16u);
        }
        const auto* values = reinterpret_cast<const uint32_t*>(to.mapped().data());
        const std::vector<uint32_t> got(values, values + kRows * kWords * 4);
        if (want.empty()) want = got;
        EXPECT_EQ(got, want);
        EXPECT_EQ(got[17], numbers[7 * kWords * 4 + 1]) << "the second row is row 7";
    }
}

// The work says much less than it does, so that the device turns out to be slow.
TEST(Submissions, ARecordingSaysWhenTheDeviceTurnedOutToBeTooSlowForIt) {
    Bench bench({.submission_max = std::chrono::milliseconds(1)});
    if (!bench.device().capabilities().is_cpu) GTEST_SKIP() << "a GPU does it in less than the bound";
    constexpr uint32_t kMany = 4u << 20;
    const Buffer many = must(bench.device().create_buffer(kMany * 4, MemoryKind::kDeviceLocal, "test"));
    const Kernel kernel =
        must(Kernel::create(bench.device(), {.module = "self_test", .constants = {128, kSelfTestScale}}));
    const auto record = [&] {
        auto recorder = must(Recorder::begin(bench.device()));
        for (uint32_t i = 0; i < 4; ++i) {
            const SelfTestParams params{many.address(), many.address(), kMany, 3, 1, 0};
            recorder.dispatch(kernel, params, kMany / 128, 1, 1, {.name = "scale", .flops = 1'000'000});
            recorder.barrier();
        }
        return must(std::move(recorder).end());
    };
    const CommandBuffer first = record();
    EXPECT_FALSE(first.wants_cuts());
    EXPECT_EQ(bench.run(first), 1u);
    EXPECT_TRUE(first.wants_cuts());
    const CommandBuffer second = record();
    EXPECT_FALSE(second.wants_cuts()) << "it is cut as fine as can be";
    EXPECT_EQ(bench.run(second), 4u);
}

TEST(Submissions, TheNextStartKnowsHowFastTheDeviceIs) {
    const lorad::testing::TempDir folder;
    const DeviceOptions options{.pipeline_cache = folder.path() / "pipelines.bin", .submission_max = kBound};
    {
        Bench bench(options);
        // The device does none of this, so it is faster than it was thought.
        for (int i = 0; i < 10; ++i) bench.run(bench.record(3, 800'000'000));
        bench.device().save_caches();
    }
    const auto next = must(Device::create(options));
    const auto rates = next->start_record().find("rates");
    ASSERT_TRUE(rates.has_value());
    EXPECT_GT(std::stod(*rates), 15e3) << "flops in a microsecond: three times what was guessed, at least";
}

}  // namespace
}  // namespace lorad::gpu::testing::submission_test
