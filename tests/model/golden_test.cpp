// The golden models: logits and greedy continuations of transformers in float32, here through the engine's own step.

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "model/exec/runner.h"
#include "tests/support/goldens.h"
#include "tests/support/load_executor.h"
#include "tests/support/synthetic_lora.h"
#include "tests/support/test_device.h"

namespace lorad::model::golden_test {
namespace {

using namespace lorad::testing;

// The KV cache holds f16, weights are exact, everything else is f32: measured errors are at most 5.1e-4.
constexpr double kRelativeErrorMax = 2e-3;

// With 16-bit activations every matmul's input is rounded, and with sums in f16 what they add, too.
constexpr double kRelativeErrorMax16Bit = 1e-2;

// No row here has an adapter. The programs for such rows in one dispatch are left out, as software compiles them for
// more than a minute for each model.
std::unique_ptr<Executor> load(const char* name, gpu::KernelPath path,
                               gpu::PersistentDecode decode = gpu::PersistentDecode::kOff,
                               uint32_t one_dispatch_context_max = kOneDispatchContextMax) {
    return load_executor(goldens_dir() / "models" / name,
                         {.n_rows_max = 64,
                          .n_sequences_max = 16,
                          .n_positions_max = 256,
                          .n_adapter_slots = 2,
                          .kernel_path = path,
                          .one_dispatch_context_max = one_dispatch_context_max,
                          .decode = decode,
                          .refused_kernels = {"decode_layers_lora", "decode_layers_lora_affinity"}});
}

class GoldenModel : public ::testing::TestWithParam<const char*> {
  protected:
    void SetUp() override {
        executor_ = load(GetParam(), gpu::KernelPath::kPortableF32);
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
    if ((*kernels)->options().path == gpu::KernelPath::kPortable && !(*kernels)->ladder().has(gpu::RungId::kShortSums))
        GTEST_SKIP() << "portable kernels in f32 are this device's own";
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

// Whatever is found to be faster computes the same. Where software has no blocks in registers nothing is measured.
TEST_P(GoldenModel, LogitsOfProductsAsMeasuredEqualTheReference) {
    const auto kernels = gpu::KernelSet::create(test_device(), {.path = gpu::KernelPath::kPortable});
    ASSERT_TRUE(kernels.ok());
    if (!(*kernels)->ladder().has(gpu::RungId::kRegisters) ||
        executor_->weights().layers[0].qkv.type == gpu::ScalarType::kF32)
        GTEST_SKIP() << "there is one form of each product";
    ::testing::internal::CaptureStderr();
    const auto executor =
        load_executor(goldens_dir() / "models" / GetParam(), {.n_rows_max = 64,
                                                              .n_sequences_max = 16,
                                                              .n_positions_max = 256,
                                                              .n_adapter_slots = 2,
                                                              .kernel_path = gpu::KernelPath::kPortable,
                                                              .tuning = gpu::Tuning::kAlways,
                                                              .tuned_tiles_max = 1,
                                                              .decode = gpu::PersistentDecode::kOff});
    const std::string told = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(told.find(" measured in "), std::string::npos) << told;
    EXPECT_EQ(told.find("products: 0 measured"), std::string::npos) << told;
    Runner runner(*executor);
    for (size_t i = 0; i < prompts_.size(); ++i) {
        const auto reference = golden_floats(*expected_, "prompt" + std::to_string(i) + ".last_logits");
        for (const uint32_t n_chunk_rows : {8u, 5u}) {
            const auto logits = runner.logits(prompts_[i].ids, false, kNoAdapterSlot, n_chunk_rows);
            ASSERT_TRUE(logits.ok()) << logits.error().message;
            EXPECT_LE(relative_error(logits->data(), reference.data(), reference.size()), kRelativeErrorMax16Bit)
                << "prompt " << i << " in chunks of " << n_chunk_rows;
        }
    }
}

class GoldenDecode : public GoldenModel {
  protected:
    // Token by token, with steps of one row in one dispatch up to this many tokens and one for each layer beyond.
    void expect_reference(uint32_t one_dispatch_context_max) {
        if (executor_->weights().layers[0].qkv.type == gpu::ScalarType::kF32) GTEST_SKIP() << "only for 16-bit weights";
        const auto executor =
            load(GetParam(), gpu::KernelPath::kAuto, gpu::PersistentDecode::kOn, one_dispatch_context_max);
        ASSERT_TRUE(executor->decodes_in_one_dispatch());
        const bool is_bf16 = executor_->weights().layers[0].qkv.type == gpu::ScalarType::kBf16;
        Runner runner(*executor);
        for (size_t i = 0; i < prompts_.size(); ++i) {
            const auto reference = golden_floats(*expected_, "prompt" + std::to_string(i) + ".last_logits");
            const auto logits = runner.logits(prompts_[i].ids, false, kNoAdapterSlot, 1);
            ASSERT_TRUE(logits.ok()) << logits.error().message;
            EXPECT_LE(relative_error(logits->data(), reference.data(), reference.size()),
                      is_bf16 ? 5e-2 : kRelativeErrorMax16Bit)
                << "prompt " << i;
        }
        EXPECT_TRUE(executor->decodes_in_one_dispatch()) << "a step gave up";
    }
};

TEST_P(GoldenDecode, LogitsOfOneDispatchForAllLayersEqualTheReference) { expect_reference(kOneDispatchContextMax); }

TEST_P(GoldenDecode, LogitsOfADispatchForEachLayerEqualTheReference) { expect_reference(5); }

// Greedy steps of one row, what each gave.
struct OneRowSteps {
    std::vector<TokenId> tokens;
    std::vector<std::vector<float>> logits;
    bool still_one_dispatch = false;
    std::string kernel;  // for all layers, if there is one
};

// Two steps in flight, each fed the token of the one before on the device; slot 1 has an adapter.
OneRowSteps one_row_steps(uint32_t slot, uint32_t one_dispatch_context_max, uint64_t fault_step,
                          gpu::PersistentDecode decode = gpu::PersistentDecode::kOn,
                          const std::vector<reference::Type>& adapter_types = {reference::Type::kF32},
                          const std::vector<std::string>& refused = {}, bool warm_up = false) {
    ExecutorOptions options{.n_rows_max = 8, .n_sequences_max = 4, .n_positions_max = 128, .n_adapter_slots = 2};
    options.decode = decode;
    options.decode_fault_step = fault_step;
    options.one_dispatch_context_max = one_dispatch_context_max;
    options.refused_kernels = refused;
    options.warm_up = warm_up;
    const auto executor = load_executor(goldens_dir() / "models/qwen2-tied", options);
    const auto adapter = put_synthetic_lora(test_device(), executor->lora_table(), executor->config(), 1, 8, 0x7f, 1.0f,
                                            5, false, adapter_types);
    OneRowSteps steps;
    const BlockId block{0};
    const auto submit = [&](uint32_t position) {
        StepBatch batch;
        const TokenId first = 7;
        const uint32_t row = position == 0 ? batch.add_rows({&first, 1}, 0, {&block, 1}, slot)
                                           : batch.add_fed_back_row(0, position, {&block, 1}, slot);
        batch.add_output(row, true);
        EXPECT_TRUE(executor->submit(batch).ok());
    };
    submit(0);
    for (uint32_t position = 1; position < 12; ++position) {
        submit(position);
        const auto output = executor->finish();
        EXPECT_TRUE(output.ok());
        steps.tokens.push_back(output->sampled[0]);
        const std::span<const float> logits = output->logits(0);
        steps.logits.emplace_back(logits.begin(), logits.end());
    }
    EXPECT_TRUE(executor->finish().ok());
    steps.still_one_dispatch = executor->decodes_in_one_dispatch();
    const auto profile = executor->profile({.n_rows = 1, .n_context = 4}, std::array{slot}, 1);
    EXPECT_TRUE(profile.ok());
    for (const gpu::KernelProfile& kernel : *profile) {
        if (kernel.name.starts_with("decode_layers")) steps.kernel = kernel.name;
    }
    return steps;
}

double error(const OneRowSteps& got, const OneRowSteps& want) {
    double largest = 0;
    for (size_t i = 0; i < want.logits.size(); ++i) {
        largest = std::max(largest, relative_error(got.logits[i].data(), want.logits[i].data(), want.logits[i].size()));
    }
    return largest;
}

// Those of the weights' type have a program of their own, others share one.
TEST(SlowOneDispatch, AdaptersOfEachTypeGiveWhatTheyDoInSeparateDispatches) {
    using enum reference::Type;
    const struct {
        std::vector<reference::Type> types;
        const char* kernel;
    } cases[] = {{{kF32}, "decode_layers_lora"},
                 {{kF16}, "decode_layers_lora_of_type"},
                 {{kBf16}, "decode_layers_lora"},
                 {{kF32, kF16}, "decode_layers_lora"}};
    for (const auto& [types, kernel] : cases) {
        SCOPED_TRACE(static_cast<int>(types.back()));
        const OneRowSteps want = one_row_steps(1, kOneDispatchContextMax, 0, gpu::PersistentDecode::kOff, types);
        const OneRowSteps got = one_row_steps(1, kOneDispatchContextMax, 0, gpu::PersistentDecode::kOn, types);
        EXPECT_EQ(want.kernel, "");
        EXPECT_EQ(got.kernel, kernel) << "the weights are f16";
        EXPECT_EQ(got.tokens, want.tokens);
        EXPECT_LE(error(got, want), kRelativeErrorMax16Bit);
    }
}

TEST(OneDispatch, ARowWithAnAdapterWhoseProgramTheDriverRefusesHasSeparateDispatches) {
    const OneRowSteps want = one_row_steps(1, kOneDispatchContextMax, 0, gpu::PersistentDecode::kOff);
    for (const bool warm_up : {false, true}) {
        const OneRowSteps got =
            one_row_steps(1, kOneDispatchContextMax, 0, gpu::PersistentDecode::kOn, {reference::Type::kF32},
                          {"decode_layers_lora", "decode_layers_lora_affinity"}, warm_up);
        EXPECT_EQ(got.kernel, "");
        EXPECT_TRUE(got.still_one_dispatch) << "of rows without an adapter";
        EXPECT_EQ(got.logits, want.logits);
    }
}

TEST(OneDispatch, StepsInFlightAreComputedAgainWhenWorkgroupsGiveUp) {
    const OneRowSteps base = one_row_steps(kNoAdapterSlot, kOneDispatchContextMax, 0),
                      with_adapter = one_row_steps(1, kOneDispatchContextMax, 0);
    EXPECT_TRUE(base.still_one_dispatch);
    EXPECT_TRUE(with_adapter.still_one_dispatch);
    EXPECT_GT(error(with_adapter, base), 10 * kRelativeErrorMax16Bit) << "the adapter would not be missed";
    // At the fault the steps in flight are one dispatch, one and one of each layer (with an adapter separate ones), or
    // of each layer.
    constexpr struct {
        uint32_t slot, one_dispatch_context_max;
    } kCases[] = {{kNoAdapterSlot, kOneDispatchContextMax},
                  {kNoAdapterSlot, 5},
                  {kNoAdapterSlot, 2},
                  {1, kOneDispatchContextMax},
                  {1, 5}};
    for (const auto& [slot, one_dispatch_context_max] : kCases) {
        const OneRowSteps& want = slot == 1 ? with_adapter : base;
        const OneRowSteps got = one_row_steps(slot, one_dispatch_context_max, 5);
        EXPECT_EQ(got.tokens, want.tokens) << one_dispatch_context_max << ", slot " << slot;
        EXPECT_LE(error(got, want), kRelativeErrorMax16Bit) << one_dispatch_context_max << ", slot " << slot;
        EXPECT_FALSE(got.still_one_dispatch);
    }
}

const auto kModels =
    ::testing::Values("llama-scaled", "llama-tied", "mistral-window", "phi3-sharded", "qwen2-tied", "qwen3");

std::string test_name(const ::testing::TestParamInfo<const char*>& info) {
    std::string name = info.param;
    std::ranges::replace(name, '-', '_');
    return name;
}

INSTANTIATE_TEST_SUITE_P(All, GoldenModel, kModels, test_name);
// Software compiles a program for each of them for tens of seconds.
INSTANTIATE_TEST_SUITE_P(All, GoldenDecode, ::testing::Values("qwen2-tied", "qwen3"), test_name);
INSTANTIATE_TEST_SUITE_P(SlowAll, GoldenDecode,
                         ::testing::Values("llama-scaled", "llama-tied", "mistral-window", "phi3-sharded"), test_name);

}  // namespace
}  // namespace lorad::model::golden_test
