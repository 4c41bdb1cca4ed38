// The 8-bit KV cache through whole models: the goldens' logits, the texts that follow, and what a text's tokens cost.
#include <algorithm>
#include <cmath>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/exec/runner.h"
#include "model/output/logits.h"
#include "tests/support/goldens.h"
#include "tests/support/load_executor.h"
#include "tests/support/random_model.h"
#include "tests/support/source_dir.h"

namespace lorad::model::kv8_test {
namespace {

using namespace lorad::testing;

std::unique_ptr<Executor> load(const std::filesystem::path& folder, gpu::KvType kv_type, gpu::KernelPath path,
                               uint32_t n_positions_max = 256) {
    ExecutorOptions options;
    options.n_rows_max = 128;
    options.n_sequences_max = 4;
    options.n_positions_max = n_positions_max;
    options.n_outputs_max = 128;
    options.n_adapter_slots = 2;
    options.kernel_path = path;
    options.kv_type = kv_type;
    return load_executor(folder, options);
}

class Kv8Golden : public ::testing::TestWithParam<const char*> {};

// Of 32 normal values the greatest is about 2.2 standard deviations: a value's error, uniform within half of 1 / 127 of
// that, is 0.5 % of its size, independent for each. Random weights pass on errors of keys and values like signals, a
// few layers' worth of them: 2 %. (Measured: at most 1.5 %.)
constexpr double kRelativeErrorMax = 2e-2;

TEST_P(Kv8Golden, LogitsAreTheReferencesWithinWhatEightBitsHold) {
    const auto prompts = read_golden_prompts(goldens_dir() / "expected/models" / (std::string(GetParam()) + ".json"));
    auto files = TensorFiles::map(goldens_dir() / "expected/models" / (std::string(GetParam()) + ".safetensors"),
                                  ErrorCode::kIo);
    ASSERT_TRUE(files.ok()) << files.error().message;
    for (const gpu::KernelPath path : {gpu::KernelPath::kPortableF32, gpu::KernelPath::kAuto}) {
        const auto executor = load(goldens_dir() / "models" / GetParam(), gpu::KvType::kInt8, path);
        Runner runner(*executor);
        for (size_t i = 0; i < prompts.size(); ++i) {
            const auto reference = golden_floats(*files, "prompt" + std::to_string(i) + ".last_logits");
            const auto logits = runner.logits(prompts[i].ids, false);
            ASSERT_TRUE(logits.ok()) << logits.error().message;
            const double error = relative_error(logits->data(), reference.data(), reference.size());
            EXPECT_LE(error, kRelativeErrorMax) << "prompt " << i;
            EXPECT_GE(error, 1e-5) << "prompt " << i << ": is the cache in f16?";
            RecordProperty("relative_error_prompt" + std::to_string(i), std::to_string(error));
        }
    }
}

INSTANTIATE_TEST_SUITE_P(All, Kv8Golden,
                         ::testing::Values("llama-scaled", "llama-tied", "mistral-window", "phi3-sharded", "qwen2-tied",
                                           "qwen3"),
                         [](const auto& param_info) {
                             std::string name = param_info.param;
                             std::replace(name.begin(), name.end(), '-', '_');
                             return name;
                         });

// The mean log-probability of the ids after the first.
double mean_logprob(Runner& runner, const std::vector<TokenId>& ids, size_t vocab) {
    const auto logits = runner.logits(ids, true);
    EXPECT_TRUE(logits.ok());
    double sum = 0.0;
    for (size_t i = 0; i + 1 < ids.size(); ++i)
        sum += double{logprobs_of(std::span(*logits).subspan(i * vocab, vocab), ids[i + 1], 0).token.logprob};
    return sum / static_cast<double>(ids.size() - 1);
}

TEST(Kv8DemoModel, TextsStayAndCostTheSame) {
    const std::filesystem::path folder = lorad::testing::source_dir() / "deploy/demo-model";
    const auto eight = load(folder / "base", gpu::KvType::kInt8, gpu::KernelPath::kAuto);
    const auto sixteen = load(folder / "base", gpu::KvType::kF16, gpu::KernelPath::kAuto);
    Runner runner8(*eight), runner16(*sixteen);
    std::ifstream in(folder / "samples.json");
    const auto samples = nlohmann::json::parse(in).at("samples");
    const size_t vocab = eight->config().vocab_size;
    size_t n_same = 0, n_all = 0;
    double difference = 0.0;
    for (const auto& sample : samples) {
        const std::vector<TokenId> prompt = sample.at("prompt_ids"), ids = sample.at("outputs").at("base").at("ids");
        const auto generated = runner8.generate(prompt, {.n_tokens_max = static_cast<uint32_t>(ids.size())});
        ASSERT_TRUE(generated.ok()) << generated.error().message;
        const auto [mine, other] = std::ranges::mismatch(generated->ids, ids);
        n_same += static_cast<size_t>(mine - generated->ids.begin());
        n_all += ids.size();
        std::vector<TokenId> text = prompt;
        text.insert(text.end(), ids.begin(), ids.end());
        difference += std::abs(mean_logprob(runner8, text, vocab) - mean_logprob(runner16, text, vocab));
    }
    RecordProperty("share_of_equal_tokens", std::to_string(static_cast<double>(n_same) / static_cast<double>(n_all)));
    RecordProperty("mean_logprob_difference", std::to_string(difference / static_cast<double>(samples.size())));
    EXPECT_GE(n_same, n_all * 9 / 10) << "up to the first difference of each text";
    // Perplexity within half a per cent.
    EXPECT_LT(difference / static_cast<double>(samples.size()), 5e-3);
}

// Layer 0 has keys as Qwen2.5 has them, with constant parts of 150 in channels that queries are large in, too.
TEST(Kv8Executor, KeysOfLargeBiasesStayInSixteenBits) {
    const RandomModel model({.hidden = 256,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_dim = 64,
                             .ffn = 256,
                             .layers = 3,
                             .vocab = 512,
                             .large_bias = 150.0f});
    std::vector<TokenId> ids;
    for (TokenId i = 0; i < 100; ++i) ids.push_back((i * 37 + 11) % 512);
    for (const gpu::KernelPath path : {gpu::KernelPath::kPortableF32, gpu::KernelPath::kAuto}) {
        const auto eight = load(model.folder(), gpu::KvType::kInt8, path, 128),
                   sixteen = load(model.folder(), gpu::KvType::kF16, path, 128);
        EXPECT_EQ(eight->memory_plan().kv.keys_f16, (std::vector<bool>{true, false, false}));
        Runner runner8(*eight), runner16(*sixteen);
        const auto got = runner8.logits(ids, true), want = runner16.logits(ids, true);
        ASSERT_TRUE(got.ok() && want.ok());
        EXPECT_LE(relative_error(got->data(), want->data(), want->size()), kRelativeErrorMax);
        EXPECT_GE(relative_error(got->data(), want->data(), want->size()), 1e-5) << "is the cache in f16?";
    }
}

TEST(Kv8Executor, ChunksAndDecodesReadWhatOtherStepsWrote) {
    const auto executor =
        load(goldens_dir() / "models" / "qwen2-tied", gpu::KvType::kInt8, gpu::KernelPath::kPortableF32);
    Runner runner(*executor);
    std::vector<TokenId> ids;
    for (TokenId i = 0; i < 100; ++i)
        ids.push_back((i * 37 + 11) % static_cast<TokenId>(executor->config().vocab_size));
    const auto whole = runner.logits(ids, false);
    ASSERT_TRUE(whole.ok());
    for (const uint32_t n_chunk_rows : {1u, 7u, 64u}) {
        const auto chunked = runner.logits(ids, false, kNoAdapterSlot, n_chunk_rows);
        ASSERT_TRUE(chunked.ok());
        // The same values are quantized, whatever step computes them: only the order of sums in products differs.
        EXPECT_LE(relative_error(chunked->data(), whole->data(), whole->size()), 1e-3) << n_chunk_rows;
    }
}

}  // namespace
}  // namespace lorad::model::kv8_test
