// Golden families whose layers are not Llama's, token by token in one dispatch for all layers and in one for each,
// against transformers.
#include <algorithm>
#include <array>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>

#include <gtest/gtest.h>

#include "model/exec/runner.h"
#include "model/forward/decode_layers.h"
#include "tests/support/families.h"
#include "tests/support/load_executor.h"
#include "tests/support/planned_devices.h"

namespace lorad::model::family_decode_test {
namespace {

using namespace lorad::testing;

class FamilyDecode : public ::testing::TestWithParam<const char*> {
  protected:
    static constexpr size_t kPrompt = 2;  // longer than a block, and than the windows

    void SetUp() override {
        const std::string stem = (families_dir() / "expected/models" / GetParam()).string();
        prompts_ = read_golden_prompts(stem + ".json");
        ASSERT_GT(prompts_.size(), kPrompt);
        ids_ = prompts_[kPrompt].ids;
        ASSERT_GT(ids_.size(), kBlockTokens);
        const auto files = TensorFiles::map(stem + ".safetensors", ErrorCode::kIo);
        ASSERT_TRUE(files.ok()) << files.error().message;
        want_ = golden_floats(*files, "prompt" + std::to_string(kPrompt) + ".last_logits");
    }

    // No row here has an adapter, and software compiles programs for those for more than a minute.
    static std::unique_ptr<Executor> load(uint32_t one_dispatch_context_max, bool may_group_kv = false) {
        return load_executor(families_dir() / "models" / GetParam(),
                             {.n_rows_max = 128,
                              .n_sequences_max = 4,
                              .n_positions_max = 256,
                              .n_adapter_slots = 1,
                              .n_kv_blocks = 40,
                              .may_group_kv = may_group_kv,
                              .kernel_path = gpu::KernelPath::kAuto,
                              .one_dispatch_context_max = one_dispatch_context_max,
                              .decode = gpu::PersistentDecode::kOn,
                              .refused_kernels = {"decode_families_lora", "decode_families_lora_affinity"}});
    }

    // Of the kernels that a step of one row runs.
    static bool runs(Executor& executor, std::string_view kernel) {
        constexpr uint32_t kContext = 40;
        const auto profile = executor.profile({.n_rows = 1, .n_context = kContext}, std::array{kNoAdapterSlot}, 1);
        EXPECT_TRUE(profile.ok());
        return profile.ok() && std::ranges::find(*profile, kernel, &gpu::KernelProfile::name) != profile->end();
    }

    void expect_reference(const std::vector<float>& logits, const Executor& executor) const {
        const bool is_bf16 = executor.weights().layers[0].qkv.type == gpu::ScalarType::kBf16;
        ASSERT_EQ(logits.size(), want_.size());
        EXPECT_LE(relative_error(logits.data(), want_.data(), want_.size()), is_bf16 ? 5e-2 : 1e-2);
        EXPECT_TRUE(executor.decodes_in_one_dispatch()) << "a step gave up";
    }

    std::vector<GoldenPrompt> prompts_;
    std::vector<TokenId> ids_;
    std::vector<float> want_;
};

TEST_P(FamilyDecode, InOneDispatchAndInOneForEachLayerGivesTheReference) {
    for (const uint32_t context_max : {kOneDispatchContextMax, 5u}) {
        const auto executor = load(context_max);
        ASSERT_TRUE(executor->decodes_in_one_dispatch());
        EXPECT_TRUE(runs(*executor, context_max == 5 ? "decode_behind" : "decode_layers"));
        const auto logits = Runner(*executor).logits(ids_, false, kNoAdapterSlot, 1);
        ASSERT_TRUE(logits.ok()) << logits.error().message;
        expect_reference(*logits, *executor);
    }
}

// Layers with a window have blocks of their own.
class FamilyDecodeOfWindows : public FamilyDecode {};

TEST_P(FamilyDecodeOfWindows, ReadsTheBlocksOfTheLayersGroup) {
    const auto executor = load(kOneDispatchContextMax, true);
    ASSERT_TRUE(executor->decodes_in_one_dispatch());
    const KvGroups& groups = executor->memory_plan().groups;
    ASSERT_TRUE(groups.has_both());
    const std::vector<BlockId> blocks = {3, 1};
    const std::vector<BlockId> window_blocks = {2, 5};
    std::vector<float> logits;
    // The first tokens by separate dispatches, which have them where they belong.
    for (uint32_t position = 0, n_rows = 50; position < ids_.size(); position += n_rows, n_rows = 1) {
        StepBatch batch;
        const uint32_t n_blocks = (position + n_rows - 1) / kBlockTokens + 1;
        const RowAdapters adapters{.window_blocks = std::span(window_blocks).first(n_blocks)};
        const uint32_t row = batch.add_rows(std::span(ids_).subspan(position, n_rows), position,
                                            std::span(blocks).first(n_blocks), adapters);
        batch.add_output(row + n_rows - 1, true);
        ASSERT_TRUE(executor->submit(batch).ok());
        const auto output = executor->finish();
        ASSERT_TRUE(output.ok()) << output.error().message;
        logits.assign(output->logits(0).begin(), output->logits(0).end());
    }
    expect_reference(logits, *executor);
}

// Without a device. What other families have needs more than the program's parts.
TEST(DecodeLayersOfFamilies, AreThoseOfAttentionAndAPlainFeedForward) {
    if (other_families() != nullptr) GTEST_SKIP() << "of the set in the tree";
    const gpu::DeviceCapabilities caps = h200();
    const gpu::KernelFacts facts{caps, {}, gpu::ladder_of(caps, gpu::KernelPath::kAuto)};
    const gpu::KernelPlanner kernels{facts};
    std::set<std::string> able;
    for (const GoldenFamily& family : kGoldenFamilies) {
        std::ifstream in(families_dir() / "models" / family.model / "config.json");
        std::ostringstream text;
        text << in.rdbuf();
        const auto config = parse_model_config(text.str(), "");
        ASSERT_TRUE(config.ok()) << family.model << ": " << config.error().message;
        ModelWeights weights;
        weights.layers.resize(config->n_layers);
        for (LayerWeights& w : weights.layers) {
            for (Matrix* matrix : {&w.qkv, &w.o, &w.gate_up, &w.down}) matrix->type = gpu::ScalarType::kBf16;
        }
        if (can_decode_layers(kernels.persistent, *config, weights)) able.insert(family.model);
    }
    EXPECT_EQ(able, (std::set<std::string>{"gemma3-nested", "granite", "llama-biased", "ministral3-nested", "olmo2",
                                           "olmo3", "phi4-mini", "smollm3"}));
}

TEST(DecodeLayersOfFamilies, FitTheSharedMemoryOfAnH200InGemmasSizes) {
    const gpu::DeviceCapabilities caps = h200();
    const gpu::KernelFacts facts{caps, {}, gpu::ladder_of(caps, gpu::KernelPath::kAuto)};
    const gpu::KernelPlanner kernels{facts};
    const auto fits = [&](uint32_t hidden, uint32_t ffn, uint32_t heads, uint32_t head_dim, bool lora) {
        return kernels.persistent.can_decode_layers({.type = gpu::ScalarType::kBf16,
                                                     .hidden = hidden,
                                                     .n_q_heads = heads,
                                                     .n_kv_heads = heads / 2,
                                                     .head_dim = head_dim,
                                                     .rotary_dim = head_dim,
                                                     .ffn = ffn,
                                                     .lora = lora,
                                                     .family = {.norms_after = true, .by_layer = true}});
    };
    for (const bool lora : {false, true}) {
        EXPECT_TRUE(fits(2560, 10240, 8, 256, lora)) << "4B";
        EXPECT_TRUE(fits(3840, 15360, 16, 256, lora)) << "12B";
    }
    EXPECT_TRUE(fits(5376, 21504, 32, 128, false)) << "27B";
    EXPECT_FALSE(fits(5376, 21504, 32, 128, true)) << "27B with an adapter has separate dispatches";
}

const auto test_name = [](const ::testing::TestParamInfo<const char*>& info) {
    std::string name = info.param;
    std::ranges::replace(name, '-', '_');
    return name;
};

// A software device compiles the programs of each for a minute and more.
INSTANTIATE_TEST_SUITE_P(All, FamilyDecode, ::testing::Values("gemma3-nested"), test_name);
INSTANTIATE_TEST_SUITE_P(SlowAll, FamilyDecode,
                         ::testing::Values("olmo2", "olmo3", "smollm3", "granite", "ministral3-nested"), test_name);
INSTANTIATE_TEST_SUITE_P(All, FamilyDecodeOfWindows, ::testing::Values("gemma3-nested"), test_name);

}  // namespace
}  // namespace lorad::model::family_decode_test
