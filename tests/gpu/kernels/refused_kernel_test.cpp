#include <thread>

#include <gmock/gmock.h>

#include "tests/gpu/kernels/kernel_fixture.h"

namespace lorad::gpu::testing::refused_kernel_test {
namespace {

using ::testing::HasSubstr;

TEST_F(KernelTest, AKernelThatTheDriverRefusesIsToldToTheThreadThatRecordsIt) {
    const auto kernels = must(KernelSet::create(device(), {.path = KernelPath::kPortable, .refused = {"copy_words"}}));
    const Buffer from = input(std::vector<uint32_t>(64, 7)), to = poisoned(256);
    Recorder recorder = must(Recorder::begin(device()));
    for (uint32_t turn = 0; turn < 2; turn++) {
        kernels->rows.copy_words(recorder, from.address(), to.address(), 256);
        kernels->rows.copy_words(recorder, from.address(), to.address(), 256);
        std::thread([&] { EXPECT_TRUE(kernels->status().ok()) << "of another thread's recording"; }).join();
        const Status told = kernels->status();
        ASSERT_FALSE(told.ok());
        EXPECT_EQ(told.error().code, ErrorCode::kKernelRefused);
        EXPECT_THAT(told.error().message, HasSubstr("'copy_words'"));
        EXPECT_TRUE(kernels->status().ok()) << "told once";
    }
    // What is not refused is made as before.
    GatherRowsParams params{};
    kernels->rows.gather_rows(recorder, params, 1);
    EXPECT_TRUE(kernels->status().ok());
}

}  // namespace
}  // namespace lorad::gpu::testing::refused_kernel_test
