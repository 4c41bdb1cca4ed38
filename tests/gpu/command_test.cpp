#include "gpu/command.h"

#include <numeric>

#include <gmock/gmock.h>

#include "gpu/kernels/self_test.params.h"
#include "gpu/pipeline.h"
#include "proto/base/rounding.h"
#include "tests/gpu/gpu_fixture.h"

namespace lorad::gpu::testing::command_test {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kThreads = 64;

Kernel make_kernel(Device& device, uint32_t mode) {
    return must(Kernel::create(device, {.module = "self_test", .constants = {kThreads, mode}}));
}

SelfTestParams scale(const Buffer& from, const Buffer& to, uint32_t n, uint32_t factor, uint32_t summand) {
    return {from.address(), to.address(), n, factor, summand, 0};
}

constexpr uint32_t groups(uint32_t n) { return ceil_div(n, kThreads); }

class CommandTest : public GpuTest {};

TEST_F(CommandTest, KernelReadsAndWritesThroughAddresses) {
    const uint32_t n = 1000;
    std::vector<uint32_t> input(n);
    std::iota(input.begin(), input.end(), 0u);
    const Buffer from = make_buffer(n * 4);
    const Buffer to = make_buffer(n * 4);
    write_buffer(from, input);
    const Kernel kernel = make_kernel(device(), kSelfTestScale);
    auto recorder = must(Recorder::begin(device()));
    recorder.dispatch(kernel, scale(from, to, n, 3, 7), groups(n), 1, 1, {.name = "scale"});
    const CommandBuffer recording = must(std::move(recorder).end());
    EXPECT_EQ(recording.n_dispatches(), 1u);
    run(recording);
    const auto result = read_buffer<uint32_t>(to, n);
    for (uint32_t i = 0; i < n; ++i) ASSERT_EQ(result[i], i * 3 + 7) << i;
}

TEST_F(CommandTest, BarriersOrderAChainOfDispatchesCopiesAndFills) {
    const uint32_t n = 5000;
    const Buffer a = make_buffer(n * 4);
    const Buffer b = make_buffer(n * 4);
    const Kernel kernel = make_kernel(device(), kSelfTestScale);
    auto recorder = must(Recorder::begin(device()));
    recorder.fill(a, 0, n * 4, 1);
    recorder.barrier();
    uint32_t expected = 1;
    for (int i = 0; i < 50; ++i) {
        recorder.dispatch(kernel, scale(a, b, n, 3, 1), groups(n), 1, 1, {});
        recorder.barrier();
        recorder.dispatch(kernel, scale(b, a, n, 1, 5), groups(n), 1, 1, {});
        recorder.barrier();
        expected = expected * 3 + 6;
        if (i % 10 == 9) {  // through a copy, with no more than the plain barrier around it
            recorder.copy(a, 0, b, 0, n * 4);
            recorder.barrier();
            recorder.dispatch(kernel, scale(b, a, n, 2, 0), groups(n), 1, 1, {});
            recorder.barrier();
            expected *= 2;
        }
    }
    run(must(std::move(recorder).end()));
    EXPECT_EQ(read_buffer<uint32_t>(a, n), std::vector<uint32_t>(n, expected));
}

// More dispatches than a block of parameters has room for, each with its own; and recordings that come and go, in whose
// blocks others' lie next.
TEST_F(CommandTest, EachDispatchHasItsOwnParametersFromABuffer) {
    auto own = must(Device::create({.validation = true, .params_in_buffer = true}));
    const uint32_t n_dispatches = 1500;
    const Buffer from = must(own->create_buffer(4, MemoryKind::kHostUpload, "test")),
                 to = must(own->create_buffer(n_dispatches * 4, MemoryKind::kHostReadback, "test"));
    const uint32_t three = 3;
    std::memcpy(from.mapped().data(), &three, 4);
    {
        const Kernel kernel = make_kernel(*own, kSelfTestScale);
        std::vector<CommandBuffer> kept;
        for (uint32_t round = 0; round < 3; ++round) {
            std::memset(to.mapped().data(), 0xff, to.size());
            auto recorder = must(Recorder::begin(*own));
            for (uint32_t i = 0; i < n_dispatches; ++i) {
                SelfTestParams params = scale(from, to, 1, i, round);
                params.to += uint64_t{i} * 4;
                recorder.dispatch(kernel, params, 1, 1, 1, {});
            }
            kept.push_back(must(std::move(recorder).end()));
            if (round == 1) kept.erase(kept.begin());
            const CommandBuffer* const recordings[] = {&kept.back()};
            must(own->compute_queue().wait(must(own->compute_queue().submit(recordings))));
            const auto* got = reinterpret_cast<const uint32_t*>(to.mapped().data());
            for (uint32_t i = 0; i < n_dispatches; ++i)
                ASSERT_EQ(got[i], 3 * i + round) << "dispatch " << i << " of recording " << round;
        }
    }
    EXPECT_EQ(own->validation_message_count(), 0u);
}

// Parameters that come again soon, late, and of which only one word is another.
TEST_F(CommandTest, DispatchesMayShareParametersInABuffer) {
    auto own = must(Device::create({.validation = true, .params_in_buffer = true}));
    const Buffer value = must(own->create_buffer(4, MemoryKind::kHostReadback, "test"));
    {
        const Kernel kernel = make_kernel(*own, kSelfTestScale);
        auto recorder = must(Recorder::begin(*own));
        uint32_t expected = 1;
        recorder.fill(value, 0, 4, expected);
        recorder.barrier();
        struct Step {
            uint32_t factor, summand;
        };
        const auto add = [&](const Step& s) {
            recorder.dispatch(kernel, scale(value, value, 1, s.factor, s.summand), 1, 1, 1, {});
            recorder.barrier();
            expected = expected * s.factor + s.summand;
        };
        for (const Step s : {Step{3, 1}, Step{1, 5}, Step{3, 1}, Step{3, 2}, Step{1, 5}, Step{3, 1}, Step{7, 0},
                             Step{5, 9}, Step{1, 6}, Step{1, 5}, Step{3, 1}, Step{3, 1}})
            add(s);
        // More than a block has room for; the last ones may be of the block before.
        for (uint32_t i = 0; i < 1200; ++i) {
            add({1, i / 2});
            add({3, 7});
        }
        const CommandBuffer recording = must(std::move(recorder).end());
        const CommandBuffer* const recordings[] = {&recording};
        for (int replay = 0; replay < 2; ++replay) {
            must(own->compute_queue().wait(must(own->compute_queue().submit(recordings))));
            EXPECT_EQ(*reinterpret_cast<const uint32_t*>(value.mapped().data()), expected);
        }
    }
    EXPECT_EQ(own->validation_message_count(), 0u);
}

TEST_F(CommandTest, ARecordingIsSubmittedAHundredTimesWhilePending) {
    const Buffer counter = make_buffer(4);
    write_buffer(counter, std::vector<uint32_t>{0});
    const Kernel kernel = make_kernel(device(), kSelfTestCount);
    auto recorder = must(Recorder::begin(device()));
    recorder.dispatch(kernel, scale(counter, counter, 0, 0, 0), 4, 1, 1, {});
    const CommandBuffer recording = must(std::move(recorder).end());
    const CommandBuffer* once[] = {&recording};
    Queue& queue = device().compute_queue();
    uint64_t last = 0;
    for (int i = 0; i < 100; ++i) {
        const uint64_t value = must(queue.submit(once));
        EXPECT_EQ(value, last == 0 ? value : last + 1);
        last = value;
    }
    must(queue.wait(last));
    EXPECT_GE(must(queue.completed()), last);
    EXPECT_EQ(read_buffer<uint32_t>(counter, 1)[0], 100 * 4 * kThreads);
}

TEST_F(CommandTest, RecordingsOfOneSubmissionRunInOrder) {
    const uint32_t n = 3000;
    const Buffer a = make_buffer(n * 4);
    const Buffer b = make_buffer(n * 4);
    const Kernel kernel = make_kernel(device(), kSelfTestScale);
    auto first = must(Recorder::begin(device()));
    first.fill(a, 0, n * 4, 10);
    const CommandBuffer filled = must(std::move(first).end());
    auto second = must(Recorder::begin(device()));
    second.dispatch(kernel, scale(a, b, n, 2, 0), groups(n), 1, 1, {});
    const CommandBuffer doubled = must(std::move(second).end());
    auto third = must(Recorder::begin(device()));
    third.copy(b, 0, a, 0, n * 4);
    const CommandBuffer copied = must(std::move(third).end());
    const CommandBuffer* all[] = {&filled, &doubled, &copied, &doubled, &copied};
    Queue& queue = device().compute_queue();
    must(queue.wait(must(queue.submit(all))));
    EXPECT_EQ(read_buffer<uint32_t>(a, n), std::vector<uint32_t>(n, 40));
}

TEST_F(CommandTest, IndirectGridIsReadWhenTheWorkExecutes) {
    const Buffer counter = make_buffer(4);
    const Buffer grid = make_buffer(64);
    const Kernel kernel = make_kernel(device(), kSelfTestCount);
    auto recorder = must(Recorder::begin(device()));
    recorder.fill(counter, 0, 4, 0);
    recorder.barrier();
    recorder.dispatch_indirect(kernel, scale(counter, counter, 0, 0, 0), grid, 16, {});
    const CommandBuffer recording = must(std::move(recorder).end());
    for (const uint32_t x : {1u, 5u, 0u}) {
        write_buffer(grid, std::vector<uint32_t>{99, 99, 99, 99, x, 2, 1});
        run(recording);
        EXPECT_EQ(read_buffer<uint32_t>(counter, 1)[0], x * 2 * kThreads);
    }
}

TEST_F(CommandTest, IndirectGridMayComeFromADispatchOfTheSameRecording) {
    const Buffer counter = make_buffer(4);
    const Buffer one = make_buffer(12);
    const Buffer grid = make_buffer(12);
    write_buffer(one, std::vector<uint32_t>{1, 1, 1});
    const Kernel make_grid = make_kernel(device(), kSelfTestScale);
    const Kernel count = make_kernel(device(), kSelfTestCount);
    auto recorder = must(Recorder::begin(device()));
    recorder.fill(counter, 0, 4, 0);
    recorder.dispatch(make_grid, scale(one, grid, 3, 2, 1), 1, 1, 1, {});
    recorder.barrier_before_indirect();
    recorder.dispatch_indirect(count, scale(counter, counter, 0, 0, 0), grid, 0, {});
    run(must(std::move(recorder).end()));
    EXPECT_EQ(read_buffer<uint32_t>(counter, 1)[0], 27 * kThreads);
}

TEST_F(CommandTest, OfWorkInPartsOnlyWhatLiesBetweenTwoCutsIsRecorded) {
    const uint32_t n = 64;
    const Buffer numbers = make_buffer(n * 4), copy = make_buffer(n * 4);
    const Kernel kernel = make_kernel(device(), kSelfTestScale);
    std::vector<double> costs;
    // numbers = 1; numbers = numbers * 10; copy = numbers; numbers = numbers + 5
    const auto record = [&](Recorder& recorder) {
        recorder.fill(numbers, 0, n * 4, 1);
        recorder.barrier();
        recorder.cut();
        recorder.dispatch(kernel, scale(numbers, numbers, n, 10, 0), groups(n), 1, 1, {.bytes = 1 << 20});
        recorder.barrier();
        recorder.cut();
        recorder.copy(numbers, 0, copy, 0, n * 4);
        recorder.barrier();
        recorder.dispatch(kernel, scale(numbers, numbers, n, 1, 5), groups(n), 1, 1, {.bytes = 1 << 30});
    };
    const auto run_part = [&](uint32_t from, uint32_t to) {
        auto recorder = must(Recorder::begin(device()));
        recorder.begin_part(from, to);
        EXPECT_TRUE(recorder.in_parts());
        record(recorder);
        costs = recorder.end_part();
        EXPECT_FALSE(recorder.in_parts());
        const CommandBuffer recording = must(std::move(recorder).end());
        run(recording);
        return recording.n_dispatches();
    };
    write_buffer(numbers, std::vector<uint32_t>(n, 7));
    write_buffer(copy, std::vector<uint32_t>(n, 8));
    EXPECT_EQ(run_part(0, 0), 0u);
    EXPECT_EQ(read_buffer<uint32_t>(numbers, n), std::vector<uint32_t>(n, 7)) << "nothing was recorded";
    EXPECT_EQ(run_part(1, 2), 1u);
    EXPECT_EQ(read_buffer<uint32_t>(numbers, n), std::vector<uint32_t>(n, 70)) << "the dispatch alone";
    EXPECT_EQ(read_buffer<uint32_t>(copy, n), std::vector<uint32_t>(n, 8));
    EXPECT_EQ(run_part(0, 1), 0u);
    EXPECT_EQ(run_part(1, 3), 2u);
    EXPECT_EQ(read_buffer<uint32_t>(copy, n), std::vector<uint32_t>(n, 10));
    EXPECT_EQ(read_buffer<uint32_t>(numbers, n), std::vector<uint32_t>(n, 15));
    ASSERT_EQ(costs.size(), 3u);
    EXPECT_LT(costs[0], costs[1]);
    EXPECT_LT(costs[1], costs[2]) << "what moves more takes longer";
}

TEST_F(CommandTest, HostReadsWhatARecordingWroteAndRecordingsReadWhatTheHostWrote) {
    const uint32_t n = 256;
    const Buffer in = make_buffer(n * 4, MemoryKind::kHostUpload);
    const Buffer out = make_buffer(n * 4, MemoryKind::kHostReadback);
    const Kernel kernel = make_kernel(device(), kSelfTestScale);
    auto recorder = must(Recorder::begin(device()));
    recorder.dispatch(kernel, scale(in, out, n, 1, 1), groups(n), 1, 1, {});
    const CommandBuffer recording = must(std::move(recorder).end());
    for (uint32_t round = 0; round < 5; ++round) {
        const std::vector<uint32_t> input(n, round * 100);
        std::memcpy(in.mapped().data(), input.data(), n * 4);
        run(recording);
        uint32_t last = 0;
        std::memcpy(&last, out.mapped().data() + (n - 1) * 4, 4);
        EXPECT_EQ(last, round * 100 + 1);
    }
}

class QueueTest : public GpuTest {};

TEST_F(QueueTest, AMissedDeadlineIsKeptAsDeviceLoss) {
    auto own = must(Device::create({}));
    const Buffer counter = must(own->create_buffer(4, MemoryKind::kDeviceLocal, "test"));
    const Kernel kernel = make_kernel(*own, kSelfTestCount);
    auto recorder = must(Recorder::begin(*own));
    // Far more than can be done in no time, yet done in a moment.
    recorder.dispatch(kernel, scale(counter, counter, 0, 0, 0), 20000, 1, 1, {});
    const CommandBuffer recording = must(std::move(recorder).end());
    const CommandBuffer* once[] = {&recording};
    Queue& queue = own->compute_queue();
    Status late = ok_status();
    // Where this thread had to wait for its turn, the device may be done before it looks: then more.
    for (int n = 20; late.ok() && n <= 2560; n *= 2) {
        uint64_t last = 0;
        for (int i = 0; i < n; ++i) last = must(queue.submit(once));
        late = queue.wait(last, std::chrono::milliseconds(0));
    }
    ASSERT_FALSE(late.ok());
    EXPECT_EQ(late.error().code, ErrorCode::kDeviceLost);
    EXPECT_THAT(late.error().message, HasSubstr("compute queue"));
    const auto again = queue.submit(once);
    ASSERT_FALSE(again.ok());
    EXPECT_EQ(again.error().message, late.error().message);
    EXPECT_FALSE(queue.completed().ok());
    own->wait_idle();
}

}  // namespace
}  // namespace lorad::gpu::testing::command_test
