#include "gpu/command.h"

#include <numeric>

#include "gpu/kernels/self_test.params.h"
#include "gpu/pipeline.h"
#include "tests/gpu/gpu_fixture.h"

namespace lorad::gpu::testing {
namespace {

constexpr uint32_t kThreads = 64;

class CommandTest : public GpuTest {
  protected:
    static Kernel kernel(uint32_t mode) {
        return must(Kernel::create(device(), {.module = "self_test", .constants = {kThreads, mode}}));
    }
};

TEST_F(CommandTest, KernelReadsAndWritesThroughAddresses) {
    const uint32_t n = 1000;
    std::vector<uint32_t> input(n);
    std::iota(input.begin(), input.end(), 0u);
    const Buffer from = make_buffer(n * 4);
    const Buffer to = make_buffer(n * 4);
    write_buffer(from, input);

    const Kernel scale = kernel(kSelfTestScale);
    auto recorder = must(Recorder::begin(device()));
    recorder.dispatch(scale, SelfTestParams{from.address(), to.address(), n, 3, 7, 0}, (n + kThreads - 1) / kThreads,
                      1, 1, {.name = "scale"});
    const CommandBuffer recording = must(std::move(recorder).end());
    EXPECT_EQ(recording.n_dispatches(), 1u);
    run(recording);

    const auto result = read_buffer<uint32_t>(to, n);
    for (uint32_t i = 0; i < n; ++i) ASSERT_EQ(result[i], i * 3 + 7) << i;
}

}  // namespace
}  // namespace lorad::gpu::testing
