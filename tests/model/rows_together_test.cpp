// Steps of a few rows by DecodeRows against the same by separate dispatches, on a model large enough for it, where the
// device takes its program.
#include <numeric>

#include <gtest/gtest.h>

#include "model/exec/executor.h"
#include "tests/support/decode_logits.h"
#include "tests/support/goldens.h"
#include "tests/support/random_model.h"
#include "tests/support/test_device.h"

namespace lorad::model::rows_together_test {
namespace {

using namespace lorad::testing;

constexpr uint32_t kVocab = 512;
constexpr RandomModel::Shape kShape{
    .hidden = 1280, .heads = 10, .kv_heads = 2, .head_dim = 128, .ffn = 4096, .layers = 3, .vocab = kVocab};
constexpr uint32_t kSequences = 8, kPrompt = 5, kSteps = 6;
constexpr double kRelativeErrorMax = 5e-3;  // of f16, as other sums are rounded

class RowsTogether : public ::testing::Test {
  protected:
    void SetUp() override {
        if (!test_device().capabilities().warpgroup_matrices) GTEST_SKIP() << "the device does not take the program";
    }

    static std::unique_ptr<Executor> load(const RandomModel& model, gpu::PersistentDecode decode,
                                          uint64_t fault_step = 0) {
        auto config = load_model_config(model.folder());
        EXPECT_TRUE(config.ok());
        auto executor = Executor::load(test_device(), model.folder(), *config,
                                       {.n_rows_max = 64,
                                        .n_sequences_max = kSequences,
                                        .n_positions_max = 64,
                                        .n_adapter_slots = 1,
                                        .decode = decode,
                                        .decode_fault_step = fault_step});
        EXPECT_TRUE(executor.ok()) << executor.error().message;
        return std::move(executor).value();
    }

    // Of n_sequences with a prompt each, kSteps later, two steps in flight; tokens are given.
    static std::vector<float> logits_of(Executor& executor, uint32_t n_sequences) {
        for (uint32_t i = 0; i < n_sequences; ++i) {
            std::vector<TokenId> prompt(kPrompt);
            std::iota(prompt.begin(), prompt.end(), static_cast<TokenId>(10 + 30 * i));
            StepBatch batch;
            const BlockId block{i};
            batch.add_output(batch.add_rows(prompt, 0, {&block, 1}, kNoAdapterSlot) + kPrompt - 1, true);
            EXPECT_TRUE(executor.submit(batch).ok());
            EXPECT_TRUE(executor.finish().ok());
        }
        return decode_logits(executor,
                             {.n = n_sequences, .n_steps = kSteps, .first_position = kPrompt, .vocab = kVocab},
                             [](uint32_t) { return kNoAdapterSlot; });
    }

    static void expect_alike(const std::vector<float>& got, const std::vector<float>& want) {
        ASSERT_EQ(got.size(), want.size());
        EXPECT_LE(relative_error(got.data(), want.data(), want.size()), kRelativeErrorMax);
    }
};

TEST_F(RowsTogether, AreWhatSeparateDispatchesGive) {
    const RandomModel model(kShape);
    const auto separate = load(model, gpu::PersistentDecode::kOff), together = load(model, gpu::PersistentDecode::kOn);
    EXPECT_FALSE(separate->decodes_rows_together());
    ASSERT_TRUE(together->decodes_rows_together());
    for (const uint32_t n : {2u, 3u, 8u}) expect_alike(logits_of(*together, n), logits_of(*separate, n));
    EXPECT_TRUE(together->decodes_rows_together()) << "a step gave up";
}

// A step that ends as if its workgroups had waited in vain is computed again by separate dispatches, with the one
// behind it, and so are all that follow.
TEST_F(RowsTogether, StepsThatGaveUpAreDoneAgain) {
    const RandomModel model(kShape);
    const auto separate = load(model, gpu::PersistentDecode::kOff);
    const std::vector<float> want = logits_of(*separate, kSequences);
    for (const uint64_t fault_step : {uint64_t{kSequences} + 1, uint64_t{kSequences} + 3}) {  // prompts are steps, too
        const auto faulty = load(model, gpu::PersistentDecode::kOn, fault_step);
        ASSERT_TRUE(faulty->decodes_rows_together());
        expect_alike(logits_of(*faulty, kSequences), want);
        EXPECT_FALSE(faulty->decodes_rows_together()) << "no step was done again";
    }
}

}  // namespace
}  // namespace lorad::model::rows_together_test
