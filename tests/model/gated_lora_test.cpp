// Steps of 33 to 64 rows whose gate and up have their rows' adapters in one product against the same by separate
// dispatches, on a model large enough for it, where the device takes its program.
#include <algorithm>
#include <string_view>

#include <gtest/gtest.h>

#include "model/exec/executor.h"
#include "tests/support/decode_logits.h"
#include "tests/support/goldens.h"
#include "tests/support/random_model.h"
#include "tests/support/synthetic_lora.h"
#include "tests/support/test_device.h"

namespace lorad::model::gated_lora_test {
namespace {

using namespace lorad::testing;
using reference::Type;

constexpr uint32_t kVocab = 512, kSequences = 64, kSteps = 3;
constexpr RandomModel::Shape kShape{
    .hidden = 512, .heads = 4, .kv_heads = 2, .head_dim = 128, .ffn = 6272, .layers = 2, .vocab = kVocab};
// of f16, as other sums are rounded; those round no activations
constexpr double kRelativeErrorMax = 5e-3, kPortableErrorMax = 1e-2;

class GatedLoraStep : public ::testing::Test {
  protected:
    static constexpr uint32_t kRanks[] = {16, 8, 12, 16, 32};  // of slots
    static constexpr uint32_t kPlainSlots = 3, kF32Slot = 3, kManyRanksSlot = 4;

    void SetUp() override {
        if (!test_device().capabilities().warpgroup_matrices) GTEST_SKIP() << "the device does not take the program";
    }

    std::unique_ptr<Executor> load(const RandomModel& model, gpu::PersistentDecode decode, uint64_t fault_step = 0,
                                   gpu::KernelPath path = gpu::KernelPath::kAuto) {
        auto config = load_model_config(model.folder());
        EXPECT_TRUE(config.ok());
        auto loaded = Executor::load(test_device(), model.folder(), *config,
                                     {.n_rows_max = 64,
                                      .n_sequences_max = kSequences,
                                      .n_positions_max = 64,
                                      .n_adapter_slots = std::size(kRanks),
                                      .kernel_path = path,
                                      .decode = decode,
                                      .decode_fault_step = fault_step});
        EXPECT_TRUE(loaded.ok()) << loaded.error().message;
        std::unique_ptr<Executor> executor = std::move(loaded).value();
        for (uint32_t slot = 0; slot < std::size(kRanks); ++slot) {
            adapters_.push_back(put_synthetic_lora(test_device(), executor->lora_table(), executor->config(), slot,
                                                   kRanks[slot], 0x7f, 0.5f, 3 + slot, false,
                                                   {slot == kF32Slot ? Type::kF32 : Type::kF16}));
        }
        return executor;
    }

    // Whether steps of such decodes really are by it.
    static bool has_program(Executor& executor) {
        const uint32_t slots[] = {0, 1, 2};
        for (const uint32_t n_rows : {40u, 64u}) {
            const auto kernels = executor.profile({.n_rows = n_rows, .n_context = 1}, slots, 1);
            EXPECT_TRUE(kernels.ok());
            if (std::ranges::none_of(*kernels, [](const gpu::KernelProfile& kernel) {
                    return std::string_view(kernel.name) == "matmul_warpgroup_gated_lora_f16";
                }))
                return false;
        }
        return true;
    }

    // Of n decodes, kSteps of them, two in flight; tokens are given. Every fourth row has no adapter, one has
    // `odd_slot`.
    static std::vector<float> logits_of(Executor& executor, uint32_t n, uint32_t odd_slot = 0) {
        return decode_logits(executor, {.n = n, .n_steps = kSteps, .vocab = kVocab}, [&](uint32_t i) {
            return i == n / 2 ? odd_slot : i % 4 < kPlainSlots ? i % 4 : kNoAdapterSlot;
        });
    }

    static void expect_alike(const std::vector<float>& got, const std::vector<float>& want,
                             double error_max = kRelativeErrorMax) {
        ASSERT_EQ(got.size(), want.size());
        EXPECT_LE(relative_error(got.data(), want.data(), want.size()), error_max);
    }

    std::vector<std::vector<gpu::Buffer>> adapters_;
};

// Also of rows among which one has an adapter that the program is not for.
TEST_F(GatedLoraStep, IsWhatSeparateDispatchesGive) {
    const RandomModel model(kShape);
    const auto separate = load(model, gpu::PersistentDecode::kOff), gated = load(model, gpu::PersistentDecode::kOn);
    EXPECT_FALSE(separate->gates_adapters());
    ASSERT_TRUE(gated->gates_adapters());
    EXPECT_TRUE(has_program(*gated) && !has_program(*separate));
    for (const uint32_t n : {33u, 40u, 64u}) expect_alike(logits_of(*gated, n), logits_of(*separate, n));
    for (const uint32_t slot : {kF32Slot, kManyRanksSlot})
        expect_alike(logits_of(*gated, 40, slot), logits_of(*separate, 40, slot));
    EXPECT_TRUE(gated->gates_adapters()) << "a step gave up";
}

// Both of these have o's input in blocks and products by warpgroups, portable kernels neither.
TEST_F(GatedLoraStep, IsWhatPortableKernelsGive) {
    const RandomModel model(kShape);
    const auto portable = load(model, gpu::PersistentDecode::kOff, 0, gpu::KernelPath::kPortableF32),
               gated = load(model, gpu::PersistentDecode::kOn);
    ASSERT_TRUE(gated->gates_adapters() && has_program(*gated));
    for (const uint32_t n : {40u, 64u}) expect_alike(logits_of(*gated, n), logits_of(*portable, n), kPortableErrorMax);
}

TEST_F(GatedLoraStep, StepsThatGaveUpAreDoneAgain) {
    const RandomModel model(kShape);
    const auto separate = load(model, gpu::PersistentDecode::kOff);
    const std::vector<float> want = logits_of(*separate, kSequences);
    for (const uint64_t fault_step : {uint64_t{1}, uint64_t{3}}) {
        const auto faulty = load(model, gpu::PersistentDecode::kOn, fault_step);
        ASSERT_TRUE(faulty->gates_adapters());
        expect_alike(logits_of(*faulty, kSequences), want);
        EXPECT_FALSE(faulty->gates_adapters()) << "no step was done again";
    }
}

}  // namespace
}  // namespace lorad::model::gated_lora_test
