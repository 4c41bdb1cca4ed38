#include "tests/gpu/kernels/kernel_fixture.h"

namespace lorad::gpu::testing::copy_words_test {
namespace {

TEST_F(KernelTest, CopiesWordsBetweenHostAndDeviceAndNoMore) {
    for (const uint32_t n_words : {1u, 7u, 256u, 1000u}) {
        std::vector<uint32_t> values(size_t{n_words} * 4);
        for (uint32_t& value : values) value = static_cast<uint32_t>(random_());
        const Buffer from = input(values), back = poisoned(n_words * 16 + 64);
        const Buffer on_device = make_buffer(n_words * 16, MemoryKind::kDeviceLocal);
        execute([&](Recorder& recorder) {
            kernels_->rows.copy_words(recorder, from.address(), on_device.address(), n_words * 16);
            recorder.barrier();
            kernels_->rows.copy_words(recorder, on_device.address(), back.address(), n_words * 16);
        });
        values.resize(values.size() + 16, 0xffffffffu);
        EXPECT_EQ(content<uint32_t>(back, values.size()), values);
    }
}

}  // namespace
}  // namespace lorad::gpu::testing::copy_words_test
