// Every golden adapter as part of the base weights, compared with what PEFT computed after merge_and_unload.
#include <algorithm>
#include <fstream>

#include <gtest/gtest.h>

#include "model/exec/runner.h"
#include "tests/adapters/served.h"
#include "tests/support/goldens.h"
#include "tests/support/read_back.h"

namespace lorad::adapters::merged_test {
namespace {

using namespace lorad::testing;

// PEFT merged in f32; lorad rounds to the base's type, which costs its unit roundoff / sqrt(3) in each matrix product,
// a few times over the layers. For f32 only the f16 KV cache is left.
double merged_error_max(gpu::ScalarType type) {
    return type == gpu::ScalarType::kF32 ? 2e-3 : type == gpu::ScalarType::kF16 ? 3e-3 : 2e-2;
}

class MergedGoldenAdapter : public ::testing::TestWithParam<const char*> {};

TEST_P(MergedGoldenAdapter, AnswersAsPeftMergedAndLeavesTheWeightsAsTheyWere) {
    const std::string model_name = GetParam();
    const auto served = Served::load(goldens_dir() / "models" / model_name);
    ASSERT_NE(served, nullptr);
    model::Executor& executor = served->executor();
    const uint64_t before = checksum(test_device(), executor.weights());
    const double error_max = merged_error_max(executor.weights().layers[0].qkv.type);
    double worst = 0;
    for (const auto& folder : std::filesystem::directory_iterator(goldens_dir() / "adapters" / model_name)) {
        const std::string name = folder.path().filename();
        ASSERT_TRUE(served->registry().load(name, folder.path()).ok()) << name;
        const uint32_t slot = served->slot_of(name);
        const std::vector<LoraUse> uses = {{slot, 1.0f}};
        auto merged = executor.merge(uses);
        ASSERT_TRUE(merged.ok()) << merged.error().message;
        executor.use_merged(*merged);

        const auto answers = goldens_dir() / "expected/adapters" / model_name;
        auto files = model::TensorFiles::map(answers / (name + ".safetensors"), ErrorCode::kIo);
        ASSERT_TRUE(files.ok());
        const auto prompts = read_golden_prompts(answers / (name + ".json"));
        // PEFT refuses to merge a bias where the base has none; and where output layer and embedding are one matrix,
        // merging a low-rank part of the embedding changes the output layer as well. There the unmerged answer is the
        // reference.
        const model::AdapterExtrasView& extras = executor.lora_table().adapter(slot).extras;
        const bool is_tied_embedding = executor.config().tied_embeddings && extras.embed_rank != 0;
        for (size_t i = 0; i < prompts.size(); ++i) {
            const std::string prompt = "prompt" + std::to_string(i);
            const bool has_merged = files->find(prompt + ".merged_last_logits") != nullptr && !is_tied_embedding;
            const auto reference =
                golden_floats(*files, prompt + (has_merged ? ".merged_last_logits" : ".last_logits"));
            model::Runner runner(executor);
            runner.set_merged(true);
            const auto logits = runner.logits(prompts[i].ids, false, slot);
            ASSERT_TRUE(logits.ok()) << logits.error().message;
            const double error = relative_error(logits->data(), reference.data(), reference.size());
            EXPECT_LE(error, error_max) << model_name << "/" << name << " " << prompt;
            worst = std::max(worst, error);
        }
    }
    executor.use_merged(nullptr);
    EXPECT_EQ(checksum(test_device(), executor.weights()), before);
    RecordProperty("worst_relative_error", std::to_string(worst));
}

INSTANTIATE_TEST_SUITE_P(All, MergedGoldenAdapter,
                         ::testing::Values("llama-scaled", "llama-tied", "mistral-window", "phi3-sharded", "qwen2-tied",
                                           "qwen3"),
                         [](const auto& param_info) {
                             std::string name = param_info.param;
                             std::ranges::replace(name, '-', '_');
                             return name;
                         });

}  // namespace
}  // namespace lorad::adapters::merged_test
