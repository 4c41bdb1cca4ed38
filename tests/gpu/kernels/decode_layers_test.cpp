#include "tests/gpu/kernels/kernel_fixture.h"

namespace lorad::gpu::testing {
namespace {

TEST_F(KernelTest, PartsOfTheContextInOneDispatchAreFewAndAttendedToAtOnce) {
    const auto splits = [&](uint32_t workgroups, uint32_t n_heads, uint32_t n_context) {
        const auto kernels = must(KernelSet::create(device(), {.path = KernelPath::kPortable, .decode_workgroups = workgroups}));
        DecodeLayersShape shape{.type = ScalarType::kF16, .hidden = 3584, .n_q_heads = n_heads, .n_kv_heads = 4, .head_dim = 128, .rotary_dim = 128, .ffn = 18944};
        return kernels->plan_decode_splits(shape, n_context);
    };
    for (const uint32_t n_context : {1u, 160u, 639u}) EXPECT_EQ(splits(132, 28, n_context), 1u) << n_context;
    EXPECT_EQ(splits(132, 28, 640), 2u);
    EXPECT_EQ(splits(132, 28, 1280), 4u);
    EXPECT_EQ(splits(132, 28, 1u << 20), 4u) << "28 x 8 are more than 132";
    EXPECT_EQ(splits(132, 12, 1u << 20), 8u);
    EXPECT_EQ(splits(20, 28, 1u << 20), 1u) << "fewer workgroups than heads";
}

}  // namespace
}  // namespace lorad::gpu::testing
