// Steps of so many rows that products take the adapters as more k, where the device has kernels by warpgroups;
// elsewhere others of its best kernels.

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "model/exec/runner.h"
#include "tests/support/goldens.h"
#include "tests/support/load_executor.h"
#include "tests/support/source_dir.h"
#include "tests/support/synthetic_lora.h"
#include "tests/support/test_device.h"

namespace lorad::model::stacked_step_test {
namespace {

using namespace lorad::testing;
using reference::Type;

constexpr uint32_t kSlots = 3;

std::unique_ptr<Executor> load(const char* name, gpu::KernelPath path) {
    ExecutorOptions options{.n_rows_max = 512, .n_sequences_max = 8, .n_positions_max = 256, .n_adapter_slots = kSlots};
    options.kernel_path = path;
    return load_executor(name[0] == 'd' ? source_dir() / "deploy/demo-model/base" : goldens_dir() / "models" / name,
                         options);
}

// Two of the weights' own type and one of others; not so many ranks that in such small models they are more work than
// the base.
std::vector<std::vector<gpu::Buffer>> put_adapters(Executor& executor, Type own) {
    std::vector<std::vector<gpu::Buffer>> kept;
    const uint32_t ranks[kSlots] = {16, 8, 5}, modules[kSlots] = {0x7f, 0x3d, 0x7f};
    const std::vector<Type> types[kSlots] = {{own}, {Type::kF32, Type::kF16}, {own}};
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
        kept.push_back(put_synthetic_lora(test_device(), executor.lora_table(), executor.config(), slot, ranks[slot],
                                          modules[slot], 0.5f, 91 + slot, false, types[slot]));
    }
    return kept;
}

// Prompts of these adapters and numbers of tokens in one step; kNoAdapterSlot: the base.
const std::vector<std::pair<uint32_t, uint32_t>> kPrompts = {{kNoAdapterSlot, 20}, {0, 137}, {2, 3}, {1, 60},
                                                             {kNoAdapterSlot, 40}, {0, 90},  {2, 50}};

std::vector<TokenId> tokens_of(const ModelConfig& config, uint32_t prompt) {
    std::vector<TokenId> tokens(kPrompts[prompt].second);
    for (uint32_t i = 0; i < tokens.size(); ++i)
        tokens[i] = static_cast<TokenId>((i * i * 31 + prompt * 17 + 5) % config.vocab_size);
    return tokens;
}

std::vector<std::vector<float>> one_step_logits(Executor& executor) {
    StepBatch batch;
    BlockId next = 0;
    for (uint32_t prompt = 0; prompt < kPrompts.size(); ++prompt) {
        const std::vector<TokenId> tokens = tokens_of(executor.config(), prompt);
        std::vector<BlockId> blocks(blocks_for_tokens(static_cast<uint32_t>(tokens.size())));
        for (BlockId& block : blocks) block = next++;
        batch.add_output(
            batch.add_rows(tokens, 0, blocks, kPrompts[prompt].first) + static_cast<uint32_t>(tokens.size()) - 1, true);
    }
    EXPECT_TRUE(executor.submit(batch).ok());
    const auto output = executor.finish();
    EXPECT_TRUE(output.ok());
    std::vector<std::vector<float>> logits;
    for (uint32_t i = 0; i < kPrompts.size() && output.ok(); ++i)
        logits.emplace_back(output->logits(i).begin(), output->logits(i).end());
    return logits;
}

class StackedStep : public ::testing::TestWithParam<const char*> {
  protected:
    static Type own_type() { return GetParam()[0] == 'd' ? Type::kBf16 : Type::kF16; }
};

TEST_P(StackedStep, AnswersAsPortableKernelsDoAlone) {
    const auto best = load(GetParam(), gpu::KernelPath::kAuto),
               portable = load(GetParam(), gpu::KernelPath::kPortableF32);
    const auto kept = put_adapters(*best, own_type()), also_kept = put_adapters(*portable, own_type());
    const auto together = one_step_logits(*best);
    ASSERT_EQ(together.size(), kPrompts.size());
    for (uint32_t prompt = 0; prompt < kPrompts.size(); ++prompt) {
        const auto tokens = tokens_of(portable->config(), prompt);
        const auto alone = Runner(*portable).logits(tokens, false, kPrompts[prompt].first),
                   base = Runner(*portable).logits(tokens, false);
        ASSERT_TRUE(alone.ok() && base.ok());
        // bf16 activations, of which each layer rounds some.
        EXPECT_LE(relative_error(together[prompt].data(), alone->data(), alone->size()), 3e-2) << "prompt " << prompt;
        if (kPrompts[prompt].first == kNoAdapterSlot) continue;
        EXPECT_GT(relative_error(alone->data(), base->data(), base->size()), 0.1) << "prompt " << prompt;
    }
}

TEST_P(StackedStep, HasItsAdaptersInItsProducts) {
    if (!test_device().capabilities().warpgroup_matrices)
        GTEST_SKIP() << "no kernels by warpgroups: " << test_device().capabilities().name;
    const auto executor = load(GetParam(), gpu::KernelPath::kAuto);
    const auto kept = put_adapters(*executor, own_type());
    const uint32_t slot = 1;
    const auto profile = executor->profile({.n_rows = 256, .n_context = 256, .is_prompt = true}, std::array{slot}, 1);
    ASSERT_TRUE(profile.ok());
    const auto calls = [&](std::string_view kernel) {
        uint64_t n = 0;
        for (const gpu::KernelProfile& one : *profile)
            n += std::string_view(one.name).find(kernel) != std::string_view::npos ? one.n_calls : 0;
        return n;
    };
    // But for the last layer's behind attention, which has one row.
    EXPECT_EQ(calls("_stacked_"), 4u * executor->config().n_layers - 3);
    EXPECT_EQ(calls("lora_stack"), 4u * executor->config().n_layers - 3);
    EXPECT_EQ(calls("gated_act"), executor->config().intermediate_size % 64 == 0 ? 1u : executor->config().n_layers);
}

INSTANTIATE_TEST_SUITE_P(All, StackedStep, ::testing::Values("demo", "qwen2-tied"),
                         [](const auto& param_info) { return std::string(param_info.param).substr(0, 4); });

}  // namespace
}  // namespace lorad::model::stacked_step_test
