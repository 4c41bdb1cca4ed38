// Quantized bases in GGUF on the device: logits and greedy continuations of transformers over the dequantized weights,
// with PEFT's adapter unmerged on top and without.
#include <algorithm>
#include <cmath>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "adapters/pool/registry.h"
#include "adapters/pool/weight_store.h"
#include "model/exec/executor.h"
#include "model/exec/runner.h"
#include "model/files/model_files.h"
#include "tests/support/goldens.h"
#include "tests/support/load_executor.h"
#include "tests/support/test_device.h"

namespace lorad::adapters::gguf_golden_test {
namespace {

using namespace lorad::testing;

// Matrices in f32 are exact; the KV cache holds f16.
constexpr double kRelativeErrorMax = 2e-3;
// In f16 every weight and every product's input is rounded.
constexpr double kRelativeErrorMax16Bit = 1e-2;

const std::filesystem::path& quantized() {
    static const std::filesystem::path folder = goldens_dir() / "quantized";
    return folder;
}

// llama-mid-Q4_0 -> gguf-llama-mid
std::string adapter_of(const std::string& name) { return "gguf-" + name.substr(0, name.rfind('-')); }

class GgufGoldens : public ::testing::TestWithParam<const char*> {
  protected:
    void SetUp() override {
        const auto folder = quantized() / "expected/gguf";
        prompts_ = read_golden_prompts(folder / (std::string(GetParam()) + ".json"));
        auto files = model::TensorFiles::map(folder / (std::string(GetParam()) + ".safetensors"), ErrorCode::kIo);
        ASSERT_TRUE(files.ok()) << files.error().message;
        expected_ = std::make_unique<model::TensorFiles>(std::move(files).value());
        ASSERT_EQ(prompts_.size(), 3u);
    }
    std::filesystem::path file() const { return quantized() / "gguf" / (std::string(GetParam()) + ".gguf"); }
    std::unique_ptr<model::Executor> load(gpu::ScalarType type) const {
        model::ExecutorOptions options{
            .n_rows_max = 128, .n_sequences_max = 4, .n_positions_max = 256, .n_adapter_slots = 2};
        options.weight_type = type;
        options.kernel_path = gpu::KernelPath::kPortableF32;
        options.decode = gpu::PersistentDecode::kOff;
        return load_executor(file(), options);
    }
    // An error of this norm, spread over the vocabulary, moves one logit by about its root mean square.
    static double logit_error(const std::vector<float>& reference, double relative) {
        double norm = 0.0;
        for (const float value : reference) norm += double{value} * value;
        return 2.0 * relative * std::sqrt(norm / static_cast<double>(reference.size()));
    }
    void expect_logits(model::Executor& executor, const std::string& which, uint32_t slot, double bound) const {
        model::Runner runner(executor);
        for (size_t i = 0; i < prompts_.size(); ++i) {
            const auto reference = golden_floats(*expected_, "prompt" + std::to_string(i) + "." + which);
            const auto logits = runner.logits(prompts_[i].ids, false, slot);
            ASSERT_TRUE(logits.ok()) << logits.error().message;
            EXPECT_LE(relative_error(logits->data(), reference.data(), reference.size()), bound)
                << which << " of prompt " << i;
        }
    }
    void expect_greedy(model::Executor& executor) const {
        model::Runner runner(executor);
        for (size_t i = 0; i < prompts_.size(); ++i) {
            const auto reference = golden_floats(*expected_, "prompt" + std::to_string(i) + ".last_logits");
            const size_t n_certain = n_certain_tokens(prompts_[i].margins, logit_error(reference, kRelativeErrorMax));
            const auto generated = runner.generate(prompts_[i].ids, {.n_tokens_max = 24, .ignore_eos = true});
            ASSERT_TRUE(generated.ok()) << generated.error().message;
            ASSERT_EQ(generated->ids.size(), 24u);
            EXPECT_GE(n_certain, 4u) << "prompt " << i << " decides little";
            EXPECT_TRUE(std::equal(generated->ids.begin(), generated->ids.begin() + static_cast<ptrdiff_t>(n_certain),
                                   prompts_[i].greedy.begin()))
                << "prompt " << i << ", " << n_certain << " certain tokens";
        }
    }

    // Texts through the file's own tokenizer.
    void expect_texts(model::Executor& executor) const {
        const auto files = model::ModelFiles::open(file());
        ASSERT_TRUE(files.ok()) << files.error().message;
        const auto tokenizer = (*files)->tokenizer();
        ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
        std::ifstream in(quantized() / "expected/gguf" / (std::string(GetParam()) + ".json"));
        const auto texts = nlohmann::json::parse(in)["text"];
        ASSERT_FALSE(texts.empty());
        for (const auto& text : texts) {
            const auto ids = (*tokenizer)->encode(text["text"].get<std::string>(), true);
            ASSERT_TRUE(ids.ok());
            EXPECT_EQ(*ids, text["ids"].get<std::vector<TokenId>>());
            const auto reference = golden_floats(*expected_, "prompt1.last_logits");
            const size_t n_certain = n_certain_tokens(text["greedy"]["margins"].get<std::vector<double>>(),
                                                      logit_error(reference, kRelativeErrorMax));
            const auto generated = model::Runner(executor).generate(*ids, {.n_tokens_max = 24, .ignore_eos = true});
            ASSERT_TRUE(generated.ok()) << generated.error().message;
            const auto expected = text["greedy"]["ids"].get<std::vector<TokenId>>();
            EXPECT_TRUE(std::equal(generated->ids.begin(), generated->ids.begin() + static_cast<ptrdiff_t>(n_certain),
                                   expected.begin()));
        }
    }

    std::vector<GoldenPrompt> prompts_;
    std::unique_ptr<model::TensorFiles> expected_;
};

TEST_P(GgufGoldens, GiveTheReferencesLogitsWithAndWithoutAnAdapter) {
    for (const auto& [type, bound] : {std::pair(gpu::ScalarType::kF32, kRelativeErrorMax),
                                      std::pair(gpu::ScalarType::kF16, kRelativeErrorMax16Bit)}) {
        SCOPED_TRACE(type == gpu::ScalarType::kF32 ? "f32" : "f16");
        const auto executor = load(type);
        ASSERT_EQ(executor->weights().layers[0].qkv.type, type);
        expect_logits(*executor, "last_logits", kNoAdapterSlot, bound);
        if (type == gpu::ScalarType::kF32) {
            expect_greedy(*executor);
            expect_texts(*executor);
        }
        auto base = BaseModel::load(file());
        ASSERT_TRUE(base.ok()) << base.error().message;
        DeviceWeightStore store(test_device(), *executor);
        Registry registry(std::move(base).value(), store, {.base_name = "base"});
        const auto loaded = registry.load("adapter", quantized() / "adapters" / adapter_of(GetParam()));
        ASSERT_TRUE(loaded.ok()) << loaded.error().message;
        const auto lease = registry.acquire("adapter");
        ASSERT_TRUE(lease.ok()) << lease.error().message;
        expect_logits(*executor, "adapter_last_logits", lease->slot(), bound);
    }
}

INSTANTIATE_TEST_SUITE_P(All, GgufGoldens,
                         ::testing::Values("llama-IQ4_XS", "llama-Q3_K_M", "llama-Q4_0", "llama-Q4_K_M", "llama-Q5_K_M",
                                           "llama-Q6_K", "llama-mid-IQ4_NL", "llama-mid-MXFP4", "llama-mid-Q4_0",
                                           "llama-mid-Q4_1", "llama-mid-Q5_0", "llama-mid-Q5_1", "llama-mid-Q8_0",
                                           "llama-small-BF16", "llama-small-F16", "llama-small-F32", "llama-tiny-Q8_0",
                                           "qwen3-IQ4_XS", "qwen3-Q3_K_M", "qwen3-Q4_K_M", "qwen3-Q5_K_M"),
                         [](const auto& instance) {
                             std::string name = instance.param;
                             std::ranges::replace(name, '-', '_');
                             return name;
                         });

}  // namespace
}  // namespace lorad::adapters::gguf_golden_test
