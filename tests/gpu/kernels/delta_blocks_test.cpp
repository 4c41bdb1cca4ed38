// Rows of delta_step in blocks: the test at the start that leaves them out, and plans for devices of all kinds.
#include <string>

#include "tests/gpu/kernels/kernel_fixture.h"
#include "tests/support/planned_devices.h"

namespace lorad::gpu::testing::delta_blocks_test {
namespace {

class DeltaBlocks : public GpuTest {};

// Blocks of rows are tested at the start with the model's shapes: where they give other numbers, rows are taken one
// after the other, as decodes and batch-invariant steps take them.
TEST_F(DeltaBlocks, AreLeftOutWhereTheTestAtTheStartFindsOtherNumbers) {
    Device& on = device();
    const DeltaShape delta{1, 2, 128, 64, 4};
    const MambaShape mamba{.heads = 4, .head_size = 20, .groups = 2, .state_size = 12, .taps = 4};
    const uint32_t of_prompts = on.capabilities().small_workgroups ? 4 : 8;
    const auto blocks = [&](KernelSetOptions options, const DeltaShape& shape, const std::string& warning) {
        options.path = KernelPath::kPortable;
        ::testing::internal::CaptureStderr();
        const auto kernels = must(KernelSet::create(on, options));
        const std::string told = ::testing::internal::GetCapturedStderr();
        EXPECT_EQ(told.find("in blocks of rows") == std::string::npos, warning.empty()) << told;
        EXPECT_NE(told.find(warning), std::string::npos) << told;
        const DeltaPlan decodes = kernels->mixers.delta_plan(shape, 3, 3),
                        rows = kernels->mixers.delta_plan(shape, 3, 99);
        EXPECT_EQ(decodes.block, 1u);
        EXPECT_EQ(rows == decodes, rows.block == 1);
        return rows.block;
    };
    EXPECT_EQ(blocks({.delta_shapes = {delta}, .mamba_shapes = {mamba}}, delta, ""), of_prompts);
    EXPECT_EQ(blocks({.left_out = {"delta_step"}, .delta_shapes = {delta}}, delta, ""), 1u);
    EXPECT_EQ(blocks({.batch_invariant = true, .delta_shapes = {delta}, .spoil_delta_blocks = true}, delta, ""), 1u);
    EXPECT_EQ(blocks({.spoil_delta_blocks = true}, delta, ""), of_prompts) << "no model with recurrences, so no test";
    EXPECT_EQ(blocks({.delta_shapes = {delta}, .spoil_delta_blocks = true}, delta,
                     "delta_step in blocks of rows on " + on.capabilities().name + " fails its self-test"),
              1u);
    EXPECT_EQ(blocks({.mamba_shapes = {mamba}, .spoil_delta_blocks = true}, mamba.recurrence(),
                     "mamba_step in blocks of rows on " + on.capabilities().name + " fails its self-test"),
              1u);
}

// Sums go over the lanes of a subgroup, and a row's bits depend on how many these are.
TEST(DeltaPlans, LanesAreOfOneSubgroupAndTheSameForAllRowsOfBatchInvariantSteps) {
    for (const uint32_t subgroup : {4u, 8u, 16u, 32u, 64u, 128u}) {
        for (const uint32_t shared_kib : {16u, 32u, 48u, 64u}) {
            for (const bool batch_invariant : {false, true}) {
                DeviceCapabilities caps = lorad::testing::without_matrices();
                caps.subgroup_size = caps.subgroup_size_min = caps.subgroup_size_max = subgroup;
                caps.shared_memory_bytes = shared_kib * 1024;
                KernelFacts facts{caps, {.batch_invariant = batch_invariant}, ladder_of(caps, KernelPath::kAuto)};
                const MixerPlanner planner(facts);
                for (const uint32_t key_size : {4u, 16u, 100u, 128u, 256u}) {
                    for (const uint32_t value_size : {4u, 64u, 256u}) {
                        const DeltaShape shape{1, 2, key_size, value_size, 4};
                        const DeltaPlan prompts = planner.delta_plan(shape, 1, 512),
                                        decodes = planner.delta_plan(shape, 8, 8);
                        EXPECT_EQ(decodes.block, 1u);
                        EXPECT_TRUE(batch_invariant ? prompts.block == 1 : prompts.block == 8 || shared_kib == 16);
                        EXPECT_EQ(prompts == decodes, batch_invariant);
                        for (const DeltaPlan& plan : {prompts, decodes}) {
                            EXPECT_GE(plan.lanes, 4u);
                            EXPECT_EQ(subgroup % plan.lanes, 0u) << "subgroups of " << subgroup;
                            EXPECT_EQ(plan.threads % subgroup, 0u);
                            EXPECT_EQ(plan.stage % plan.block, 0u);
                            // As delta_step.comp declares them.
                            const uint32_t keys = round_up(round_up(key_size, 16), plan.lanes * 4);
                            const uint32_t columns = plan.threads / plan.lanes * 4;
                            EXPECT_LE(plan.stage * (2 * keys + columns + plan.block + 2) * 4, caps.shared_memory_bytes)
                                << key_size << " keys, " << value_size << " values, subgroups of " << subgroup;
                        }
                    }
                }
            }
        }
    }
}

}  // namespace
}  // namespace lorad::gpu::testing::delta_blocks_test
