// Folders of few bits on the device, alone and with an adapter: compared with transformers and PEFT on the dequantized
// weights.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "adapters/pool/registry.h"
#include "model/exec/runner.h"
#include "tests/adapters/served.h"
#include "tests/support/goldens.h"

namespace lorad::adapters::quantized_golden_test {
namespace {

using model::Runner;
using namespace lorad::testing;

// The KV cache holds f16; weights are as the file defines them, everything else is f32: errors are at most half of
// this, as those of models in f32.
constexpr double kRelativeErrorMaxF32 = 1e-3;
// Weights, and on a device with matrix units activations, are rounded to 16 bits: 2^-9 of bf16 for each of a few
// hundred products.
constexpr double kRelativeErrorMax16Bit = 1e-2;

struct Answers {
    std::string what;
    uint32_t slot;
    std::vector<GoldenPrompt> prompts;
    std::vector<std::vector<float>> last_logits;
};

std::vector<std::string> quantized_folders() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(goldens_dir() / "quantized/hf"))
        names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
}

class QuantizedModel : public ::testing::TestWithParam<std::string> {
  protected:
    // Without a type: that of the model's config.
    void load(std::optional<gpu::ScalarType> type) {
        const std::filesystem::path goldens = goldens_dir() / "quantized";
        served_ = Served::load(goldens / "hf" / GetParam(), false, 4, gpu::KernelPath::kPortableF32,
                               gpu::PersistentDecode::kOff, type);
        ASSERT_NE(served_, nullptr);
        const std::string model = GetParam().substr(0, GetParam().find('-'));
        const auto loaded = served_->registry().load("mine", goldens / "adapters" / ("hf-" + model));
        ASSERT_TRUE(loaded.ok()) << loaded.error().message;
        const auto numbers =
            model::TensorFiles::map(goldens / "expected/hf" / (GetParam() + ".safetensors"), ErrorCode::kIo);
        ASSERT_TRUE(numbers.ok());
        const auto texts = goldens / "expected/hf" / (GetParam() + ".json");
        answers_.push_back({"without adapter", kNoAdapterSlot, read_golden_prompts(texts), {}});
        answers_.push_back(
            {"with adapter", served_->slot_of("mine"), read_golden_prompts(texts, "greedy_with_adapter"), {}});
        for (Answers& answers : answers_) {
            const char* name = answers.slot == kNoAdapterSlot ? ".last_logits" : ".adapter_last_logits";
            for (size_t i = 0; i < answers.prompts.size(); ++i)
                answers.last_logits.push_back(golden_floats(*numbers, "prompt" + std::to_string(i) + name));
            ASSERT_EQ(answers.prompts.size(), 3u);
        }
    }

    std::vector<float> logits(const Answers& answers, size_t prompt) {
        const auto logits = Runner(served_->executor()).logits(answers.prompts[prompt].ids, false, answers.slot);
        EXPECT_TRUE(logits.ok()) << logits.error().message;
        return logits.ok() ? *logits : std::vector<float>(answers.last_logits[prompt].size());
    }

    // Logits within the error; greedy tokens up to the first whose margin is within what two logits may be off by, at
    // least n_certain_min of them all.
    void expect_answers(double relative_error_max, size_t n_certain_min) {
        double worst = 0;
        size_t n_certain_of_all = 0;
        for (const Answers& answers : answers_) {
            for (size_t i = 0; i < answers.prompts.size(); ++i) {
                const std::string where = answers.what + ", prompt " + std::to_string(i);
                const GoldenPrompt& golden = answers.prompts[i];
                const std::vector<float>& want = answers.last_logits[i];
                Runner runner(served_->executor());
                const auto got = runner.logits(golden.ids, false, answers.slot);
                ASSERT_TRUE(got.ok()) << got.error().message;
                ASSERT_EQ(got->size(), want.size());
                const double error = relative_error(got->data(), want.data(), want.size());
                EXPECT_LE(error, relative_error_max) << where;
                worst = std::max(worst, error);
                double norm = 0;
                for (const float value : want) norm += double{value} * value;
                // Four standard deviations of the difference of two logits, each as far off as those of the prompt are.
                const double logit_error =
                    4 * std::sqrt(2.0) * error * std::sqrt(norm / static_cast<double>(want.size()));
                const size_t n_certain = n_certain_tokens(golden.margins, logit_error);
                const auto generated = runner.generate(
                    golden.ids, {.n_tokens_max = 24, .ignore_eos = true, .uses = model::uses_of(answers.slot)});
                ASSERT_TRUE(generated.ok()) << generated.error().message;
                EXPECT_TRUE(std::equal(golden.greedy.begin(), golden.greedy.begin() + static_cast<ptrdiff_t>(n_certain),
                                       generated->ids.begin()))
                    << where << ", " << n_certain << " certain tokens";
                n_certain_of_all += n_certain;
            }
        }
        EXPECT_GE(n_certain_of_all, n_certain_min) << "the margins decide little";
        RecordProperty("worst_relative_error", std::to_string(worst));
        RecordProperty("n_certain_tokens", std::to_string(n_certain_of_all));
    }

    std::unique_ptr<Served> served_;
    std::vector<Answers> answers_;
};

TEST_P(QuantizedModel, InF32LogitsAndGreedyTokensAreThoseOfTheDequantizedModel) {
    ASSERT_NO_FATAL_FAILURE(load(gpu::ScalarType::kF32));
    expect_answers(kRelativeErrorMaxF32, 120);
}

TEST_P(QuantizedModel, InTheTypeOfItsConfigLogitsAndGreedyTokensAreNear) {
    ASSERT_NO_FATAL_FAILURE(load(std::nullopt));
    EXPECT_EQ(served_->executor().weights().layers[0].qkv.type,
              GetParam().starts_with("qwen3") ? gpu::ScalarType::kBf16 : gpu::ScalarType::kF16);
    expect_answers(kRelativeErrorMax16Bit, 24);
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
    std::string name = info.param;
    std::ranges::replace(name, '-', '_');
    return name;
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedModel, ::testing::ValuesIn(quantized_folders()), test_name);

}  // namespace
}  // namespace lorad::adapters::quantized_golden_test
