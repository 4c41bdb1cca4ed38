#include "gpu/upload.h"

#include <atomic>
#include <random>
#include <thread>

#include "gpu/kernels/self_test.params.h"
#include "gpu/pipeline.h"
#include "tests/gpu/gpu_fixture.h"

namespace lorad::gpu::testing::upload_test {
namespace {

std::vector<uint8_t> random_bytes(size_t n, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<uint8_t> bytes(n);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    return bytes;
}

class UploadTest : public GpuTest {
  protected:
    static Uploader& uploader() { return device().uploader(); }
};

TEST_F(UploadTest, BytesArriveAtAnyOffsetAndOddSize) {
    const Buffer to = make_buffer(1000);
    must(uploader().fill_zero(to, 0, 1000));
    const auto bytes = random_bytes(333, 1);
    must(uploader().upload(to, 77, std::as_bytes(std::span(bytes))));
    must(uploader().finish());
    std::vector<uint8_t> expected(1000, 0);
    std::copy(bytes.begin(), bytes.end(), expected.begin() + 77);
    EXPECT_EQ(read_buffer<uint8_t>(to, 1000), expected);
}

TEST_F(UploadTest, TheSpanMayDieOnReturn) {
    const Buffer to = make_buffer(4096);
    {
        std::vector<uint8_t> bytes(4096, 42);
        must(uploader().upload(to, 0, std::as_bytes(std::span(bytes))));
        std::fill(bytes.begin(), bytes.end(), 0);
    }
    must(uploader().finish());
    EXPECT_EQ(read_buffer<uint8_t>(to, 4096), std::vector<uint8_t>(4096, 42));
}

TEST_F(UploadTest, RowsLandAStrideApartAndTheGapsAreNotWritten) {
    struct Shape {
        uint64_t row_bytes, stride, n_rows;
    };
    // The last two need several chunks of the ring, and break rows at the chunks' ends.
    for (const Shape s :
         {Shape{6, 6, 5}, {6, 16, 5}, {100, 128, 1000}, {1, 3, 1}, {70000, 70016, 100}, {1000, 1010, 9000}}) {
        const uint64_t size = (s.n_rows - 1) * s.stride + s.row_bytes + 8;
        const Buffer to = make_buffer((size + 3) / 4 * 4);
        auto recorder = must(Recorder::begin(device()));
        recorder.fill(to, 0, to.size(), 0xabababab);
        run(must(std::move(recorder).end()));
        const auto bytes = random_bytes(s.row_bytes * s.n_rows, 3);
        must(uploader().upload_rows(to, 8, s.stride, std::as_bytes(std::span(bytes)), s.row_bytes, s.n_rows));
        must(uploader().finish());

        std::vector<uint8_t> expected(to.size(), 0xab);
        for (uint64_t row = 0; row < s.n_rows; ++row) {
            std::copy_n(bytes.begin() + static_cast<long>(row * s.row_bytes), s.row_bytes,
                        expected.begin() + static_cast<long>(8 + row * s.stride));
        }
        EXPECT_TRUE(read_buffer<uint8_t>(to, to.size()) == expected) << s.row_bytes << " of " << s.stride;
    }
}

TEST_F(UploadTest, MoreThanTheWholeRingArrivesInOneCall) {
    // Larger than four chunks of a GPU's ring; not a multiple of a chunk.
    const size_t n = (150u << 20) + 12345;
    std::vector<uint32_t> words(n / 4);
    for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<uint32_t>(i * 2654435761u);
    const Buffer to = make_buffer(words.size() * 4);
    must(uploader().upload(to, 0, std::as_bytes(std::span(words))));
    must(uploader().finish());
    EXPECT_TRUE(read_buffer<uint32_t>(to, words.size()) == words);
}

TEST_F(UploadTest, LaterWritesToTheSameBytesWin) {
    const Buffer to = make_buffer(1 << 20);
    for (uint8_t round = 1; round <= 20; ++round) {
        must(uploader().fill_zero(to, 0, 1 << 20));
        const std::vector<uint8_t> bytes(1 << 19, round);
        must(uploader().upload(to, 1 << 18, std::as_bytes(std::span(bytes))));
    }
    must(uploader().finish());
    std::vector<uint8_t> expected(1 << 20, 0);
    std::fill_n(expected.begin() + (1 << 18), 1 << 19, 20);
    EXPECT_TRUE(read_buffer<uint8_t>(to, 1 << 20) == expected);
}

TEST_F(UploadTest, AStepSubmittedAfterAnUploadSeesIt) {
    const uint32_t n = 1 << 20;
    const Buffer from = make_buffer(n * 4);
    const Buffer to = make_buffer(n * 4);
    const Kernel kernel = must(Kernel::create(device(), {.module = "self_test", .constants = {64, kSelfTestScale}}));
    auto recorder = must(Recorder::begin(device()));
    recorder.dispatch(kernel, SelfTestParams{from.address(), to.address(), n, 1, 1, 0}, n / 64, 1, 1, {});
    const CommandBuffer recording = must(std::move(recorder).end());
    const CommandBuffer* once[] = {&recording};
    Queue& queue = device().compute_queue();
    for (uint32_t round = 0; round < 10; ++round) {
        const std::vector<uint32_t> words(n, round * 1000);
        must(uploader().upload(from, 0, std::as_bytes(std::span(words))));
        const uint64_t arrived = must(uploader().flush());
        must(queue.wait(must(queue.submit_after_upload(once, arrived))));
        EXPECT_EQ(read_buffer<uint32_t>(to, 1, (n - 1) * 4)[0], round * 1000 + 1);
    }
}

TEST_F(UploadTest, FlushWithNothingPendingIsAlreadyReached) {
    must(uploader().finish());
    const uint64_t value = must(uploader().flush());
    EXPECT_EQ(must(uploader().flush()), value);
    must(uploader().wait(value));
}

TEST_F(UploadTest, FourThreadsUploadWhileTheComputeQueueWorks) {
    const Buffer counter = make_buffer(4);
    write_buffer(counter, std::vector<uint32_t>{0});
    const Kernel kernel = must(Kernel::create(device(), {.module = "self_test", .constants = {64, kSelfTestCount}}));
    auto recorder = must(Recorder::begin(device()));
    recorder.dispatch(kernel, SelfTestParams{0, counter.address(), 0, 0, 0, 0}, 8, 1, 1, {});
    const CommandBuffer recording = must(std::move(recorder).end());

    constexpr int kUploaders = 4;
    std::vector<Buffer> buffers;
    std::vector<std::vector<uint8_t>> sent(kUploaders);
    for (int i = 0; i < kUploaders; ++i) {
        buffers.push_back(make_buffer(3u << 20));
        sent[i] = random_bytes(3u << 20, 10 + i);
    }
    std::atomic<int> n_running = kUploaders;
    std::vector<std::thread> threads;
    for (int i = 0; i < kUploaders; ++i) {
        threads.emplace_back([&, i] {
            for (size_t done = 0; done < sent[i].size(); done += 100001) {
                const size_t n = std::min<size_t>(100001, sent[i].size() - done);
                must(uploader().upload(buffers[i], done, std::as_bytes(std::span(sent[i]).subspan(done, n))));
                if (done % 7 == 0) must(uploader().wait(must(uploader().flush())));
            }
            must(uploader().finish());
            --n_running;
        });
    }
    uint32_t n_steps = 0;
    const CommandBuffer* once[] = {&recording};
    Queue& queue = device().compute_queue();
    while (n_running > 0 || n_steps < 10) {
        must(queue.wait(must(queue.submit(once))));
        ++n_steps;
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(read_buffer<uint32_t>(counter, 1)[0], n_steps * 8 * 64);
    for (int i = 0; i < kUploaders; ++i) {
        EXPECT_TRUE(read_buffer<uint8_t>(buffers[i], sent[i].size()) == sent[i]) << i;
    }
}

// The host's writes are the device's where the memory is one; else, and where a test wants it, they are staged.
TEST(UnifiedMemory, TakesNoStagingAndHoldsTheSameBytes) {
    struct Shape {
        uint64_t row_bytes, stride, n_rows;
    };
    std::vector<std::vector<uint8_t>> held[2];
    for (const bool is_staged : {false, true}) {
        auto own = must(Device::create({.validation = true, .stages_uploads = is_staged}));
        if (!is_staged && !own->capabilities().unified_memory) GTEST_SKIP() << "this device has memory of its own";
        EXPECT_EQ(own->capabilities().unified_memory, !is_staged);
        for (const Shape s : {Shape{333, 333, 1}, {6, 16, 5}, {70000, 70016, 200}, {1 << 20, 1 << 20, 20}}) {
            const uint64_t size = ((s.n_rows - 1) * s.stride + s.row_bytes + 8 + 3) / 4 * 4;
            const Buffer to = must(own->create_buffer(size, MemoryKind::kDeviceLocal, "test"));
            EXPECT_TRUE(to.mapped().empty()) << "only the uploader writes it";
            const uint64_t before = own->reserved_bytes();
            must(own->uploader().fill_zero(to, 0, size));
            const auto bytes = random_bytes(s.row_bytes * s.n_rows, 5);
            must(own->uploader().upload_rows(to, 8, s.stride, std::as_bytes(std::span(bytes)), s.row_bytes, s.n_rows));
            must(own->uploader().upload(to, 9, std::as_bytes(std::span(bytes).first(3))));
            must(own->uploader().finish());
            if (!is_staged) {
                EXPECT_EQ(own->reserved_bytes(), before) << "memory for staging was taken";
            }
            const Buffer host = must(own->create_buffer(size, MemoryKind::kHostReadback, "test"));
            auto recorder = must(Recorder::begin(*own));
            recorder.copy(to, 0, host, 0, size);
            const CommandBuffer recording = must(std::move(recorder).end());
            const CommandBuffer* once[] = {&recording};
            must(own->compute_queue().wait(
                must(own->compute_queue().submit_after_upload(once, must(own->uploader().flush())))));
            const auto* values = reinterpret_cast<const uint8_t*>(host.mapped().data());
            held[is_staged].emplace_back(values, values + size);
        }
        EXPECT_EQ(own->validation_message_count(), 0u);
    }
    EXPECT_TRUE(held[0] == held[1]);
}

}  // namespace
}  // namespace lorad::gpu::testing::upload_test
