#include <algorithm>
#include <random>
#include <thread>

#include <gmock/gmock.h>

#include "gpu/range_allocator.h"
#include "tests/gpu/gpu_fixture.h"

namespace lorad::gpu::testing::memory_test {
namespace {

using ::testing::HasSubstr;

TEST(RangeAllocator, RandomRangesNeverOverlapAndAllComeBack) {
    constexpr uint64_t kSize = 1 << 20;
    RangeAllocator ranges(kSize);
    std::mt19937 random(1);
    struct Range {
        uint64_t offset, size;
    };
    std::vector<Range> live;
    for (int step = 0; step < 20000; ++step) {
        if (live.empty() || random() % 5 < 3) {
            const uint64_t size = 1 + random() % 20000;
            const auto offset = ranges.allocate(size);
            if (!offset) {
                EXPECT_LT(ranges.largest_hole(), size + RangeAllocator::kAlignment);
                continue;
            }
            ASSERT_EQ(*offset % RangeAllocator::kAlignment, 0u);
            ASSERT_LE(*offset + size, kSize);
            for (const Range& other : live) {
                ASSERT_TRUE(*offset + size <= other.offset || other.offset + other.size <= *offset);
            }
            live.push_back({*offset, size});
        } else {
            const size_t i = random() % live.size();
            ranges.release(live[i].offset);
            live[i] = live.back();
            live.pop_back();
        }
    }
    for (const Range& range : live) ranges.release(range.offset);
    EXPECT_TRUE(ranges.empty());
    EXPECT_EQ(ranges.largest_hole(), kSize);
}

class MemoryTest : public GpuTest {};

TEST_F(MemoryTest, RandomBuffersNeverOverlapAndTheirSlabsAreReturned) {
    const uint64_t used_before = device().allocated_bytes();
    const uint64_t reserved_before = device().reserved_bytes();
    std::mt19937 random(2);
    std::vector<Buffer> live;
    for (int step = 0; step < 2000; ++step) {
        if (live.empty() || random() % 5 < 3) {
            // From bytes to more than a slab of a CPU device.
            const uint64_t size = 1 + random() % (random() % 50 == 0 ? 40u << 20 : 200000u);
            const auto kind = static_cast<MemoryKind>(random() % 3);
            Buffer buffer = make_buffer(size, kind);
            ASSERT_EQ(buffer.address() % 256, 0u);
            ASSERT_EQ(buffer.size(), size);
            ASSERT_EQ(buffer.mapped().size(), kind == MemoryKind::kDeviceLocal ? 0 : size);
            for (const Buffer& other : live) {
                ASSERT_TRUE(buffer.address() + size <= other.address() ||
                            other.address() + other.size() <= buffer.address());
            }
            live.push_back(std::move(buffer));
        } else {
            std::swap(live[random() % live.size()], live.back());
            live.pop_back();
        }
    }
    EXPECT_GT(device().allocated_bytes(), used_before);
    live.clear();
    EXPECT_EQ(device().allocated_bytes(), used_before);
    EXPECT_EQ(device().reserved_bytes(), reserved_before);
}

TEST_F(MemoryTest, EachBufferKeepsItsOwnBytes) {
    std::vector<Buffer> buffers;
    auto recorder = must(Recorder::begin(device()));
    for (uint32_t i = 0; i < 100; ++i) {
        buffers.push_back(make_buffer(4 * (1 + i * 37 % 5000)));
        recorder.fill(buffers[i], 0, buffers[i].size(), i + 1);
    }
    run(must(std::move(recorder).end()));
    for (uint32_t i = 0; i < 100; ++i) {
        const size_t n = buffers[i].size() / 4;
        EXPECT_EQ(read_buffer<uint32_t>(buffers[i], n), std::vector<uint32_t>(n, i + 1)) << i;
    }
}

TEST_F(MemoryTest, ThreadsMayCreateAndDestroyAtOnce) {
    const uint64_t used_before = device().allocated_bytes();
    const auto work = [](uint32_t seed) {
        std::mt19937 random(seed);
        std::vector<Buffer> live;
        for (int i = 0; i < 300; ++i) {
            live.push_back(make_buffer(1 + random() % 100000));
            if (live.size() > 20) live.erase(live.begin() + static_cast<long>(random() % live.size()));
        }
    };
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < 4; ++i) threads.emplace_back(work, i);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(device().allocated_bytes(), used_before);
}

TEST_F(MemoryTest, ABufferOverTheAllocationLimitIsRefusedWithBothNumbers) {
    const uint64_t limit = device().capabilities().max_allocation_bytes;
    const auto buffer = device().create_buffer(limit + 1, MemoryKind::kDeviceLocal, "huge");
    ASSERT_FALSE(buffer.ok());
    EXPECT_EQ(buffer.error().code, ErrorCode::kOutOfMemory);
    EXPECT_THAT(buffer.error().message, HasSubstr(std::to_string(limit + 1)));
    EXPECT_THAT(buffer.error().message, HasSubstr(std::to_string(limit)));
    EXPECT_THAT(buffer.error().message, HasSubstr("huge"));
}

TEST_F(MemoryTest, AskingForTooMuchFailsAndLeavesTheDeviceUsable) {
    const uint64_t used_before = device().allocated_bytes();
    const uint64_t piece = device().capabilities().max_allocation_bytes;
    std::vector<Buffer> pieces;
    Error error;
    // Untouched pages cost nothing on a CPU device, so this really fills the budget.
    for (int i = 0; i < 1000 && error.message.empty(); ++i) {
        auto buffer = device().create_buffer(piece, MemoryKind::kDeviceLocal, "filler");
        if (buffer.ok())
            pieces.push_back(std::move(buffer).value());
        else
            error = buffer.error();
    }
    EXPECT_EQ(error.code, ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.message, HasSubstr(std::to_string(piece) + " bytes asked for"));
    EXPECT_THAT(error.message, HasSubstr("bytes free"));
    pieces.clear();
    EXPECT_EQ(device().allocated_bytes(), used_before);

    const Buffer small = make_buffer(4096);
    write_buffer(small, std::vector<uint32_t>(1024, 7));
    EXPECT_EQ(read_buffer<uint32_t>(small, 1024), std::vector<uint32_t>(1024, 7));
}

TEST_F(MemoryTest, FreeBytesAreBelowTheHeap) {
    const uint64_t before = device().free_bytes_estimate();
    EXPECT_GT(before, 0u);
    EXPECT_LE(before, device().capabilities().device_local_bytes);
}

}  // namespace
}  // namespace lorad::gpu::testing::memory_test
