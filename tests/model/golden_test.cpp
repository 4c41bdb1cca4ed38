// The golden models: logits and greedy continuations of transformers in float32, here through the engine's own step.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/runner.h"
#include "tests/support/goldens.h"
#include "tests/support/test_device.h"

namespace lorad::model {
namespace {

using namespace lorad::testing;

// The KV cache holds f16, weights are exact, everything else is f32: measured errors are at most 5.1e-4.
constexpr double kRelativeErrorMax = 2e-3;

// With 16-bit activations every matmul's input is rounded.
constexpr double kRelativeErrorMax16Bit = 1e-2;

std::unique_ptr<Executor> load(const char* name, gpu::KernelPath path) {
    const auto folder = goldens_dir() / "models" / name;
    auto config = load_model_config(folder);
    EXPECT_TRUE(config.ok()) << (config.ok() ? "" : config.error().message);
    ExecutorOptions options;
    options.n_rows_max = 64;
    options.n_sequences_max = 16;
    options.n_positions_max = 256;
    options.n_adapter_slots = 2;
    options.kernel_path = path;
    auto executor = Executor::load(test_device(), folder, *config, options);
    EXPECT_TRUE(executor.ok()) << (executor.ok() ? "" : executor.error().message);
    return std::move(executor).value();
}

class GoldenModel : public ::testing::TestWithParam<const char*> {
  protected:
    void SetUp() override {
        executor_ = load(GetParam(), gpu::KernelPath::kPortable);
        prompts_ = read_golden_prompts(goldens_dir() / "expected/models" / (std::string(GetParam()) + ".json"));
        auto files = TensorFiles::map(goldens_dir() / "expected/models" / (std::string(GetParam()) + ".safetensors"),
                                      ErrorCode::kIo);
        ASSERT_TRUE(files.ok()) << files.error().message;
        expected_ = std::make_unique<TensorFiles>(std::move(files).value());
        ASSERT_EQ(prompts_.size(), 3u);
    }

    std::unique_ptr<Executor> executor_;
    std::vector<GoldenPrompt> prompts_;
    std::unique_ptr<TensorFiles> expected_;
};

TEST_P(GoldenModel, LastLogitsEqualTheReference) {
    Runner runner(*executor_);
    for (size_t i = 0; i < prompts_.size(); ++i) {
        const auto reference = golden_floats(*expected_, "prompt" + std::to_string(i) + ".last_logits");
        const auto logits = runner.logits(prompts_[i].ids, false);
        ASSERT_TRUE(logits.ok()) << logits.error().message;
        ASSERT_EQ(logits->size(), reference.size());
        const double error = relative_error(logits->data(), reference.data(), reference.size());
        EXPECT_LE(error, kRelativeErrorMax) << "prompt " << i;
        RecordProperty("relative_error_prompt" + std::to_string(i), std::to_string(error));
    }
}

TEST_P(GoldenModel, LogitsOfAllPositionsEqualTheReference) {
    const auto reference = golden_floats(*expected_, "prompt1.all_logits");
    const auto logits = Runner(*executor_).logits(prompts_[1].ids, true);
    ASSERT_TRUE(logits.ok()) << logits.error().message;
    ASSERT_EQ(logits->size(), reference.size());
    const size_t vocab = executor_->config().vocab_size;
    for (size_t position = 0; position < prompts_[1].ids.size(); ++position) {
        EXPECT_LE(relative_error(logits->data() + position * vocab, reference.data() + position * vocab, vocab),
                  kRelativeErrorMax)
            << "position " << position;
    }
}

TEST_P(GoldenModel, GreedyContinuationsAreTheReferences) {
    Runner runner(*executor_);
    for (size_t i = 0; i < prompts_.size(); ++i) {
        const auto reference = golden_floats(*expected_, "prompt" + std::to_string(i) + ".last_logits");
        double norm = 0.0;
        for (const float value : reference) norm += double{value} * value;
        // An error of this norm, spread over the vocabulary, moves one logit by about its root mean square.
        const double logit_error = 2.0 * kRelativeErrorMax * std::sqrt(norm / static_cast<double>(reference.size()));
        const size_t n_certain = n_certain_tokens(prompts_[i].margins, logit_error);
        const auto generated = runner.generate(prompts_[i].ids, {.n_tokens_max = 24, .ignore_eos = true});
        ASSERT_TRUE(generated.ok()) << generated.error().message;
        ASSERT_EQ(generated->ids.size(), 24u);
        EXPECT_GE(n_certain, 8u) << "prompt " << i << " decides little";
        EXPECT_TRUE(std::equal(generated->ids.begin(), generated->ids.begin() + static_cast<ptrdiff_t>(n_certain),
                               prompts_[i].greedy.begin()))
            << "prompt " << i << ", " << n_certain << " certain tokens";
    }
}

TEST_P(GoldenModel, LogitsOfTheDevicesOwnKernelsEqualTheReference) {
    const auto kernels = gpu::KernelSet::create(test_device(), {});
    ASSERT_TRUE(kernels.ok());
    if ((*kernels)->options().path == gpu::KernelPath::kPortable) GTEST_SKIP() << "the portable kernels are this device's own";
    const auto executor = load(GetParam(), gpu::KernelPath::kAuto);
    Runner runner(*executor);
    for (size_t i = 0; i < prompts_.size(); ++i) {
        const auto reference = golden_floats(*expected_, "prompt" + std::to_string(i) + ".last_logits");
        for (const uint32_t n_chunk_rows : {0u, 5u}) {
            const auto logits = runner.logits(prompts_[i].ids, false, kNoAdapterSlot, n_chunk_rows);
            ASSERT_TRUE(logits.ok()) << logits.error().message;
            EXPECT_LE(relative_error(logits->data(), reference.data(), reference.size()), kRelativeErrorMax16Bit)
                << "prompt " << i << " in chunks of " << n_chunk_rows;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenModel,
                         ::testing::Values("llama-scaled", "llama-tied", "mistral-window", "phi3-sharded", "qwen2-tied",
                                           "qwen3"),
                         [](const auto& param_info) {
                             std::string name = param_info.param;
                             std::ranges::replace(name, '-', '_');
                             return name;
                         });

}  // namespace
}  // namespace lorad::model
