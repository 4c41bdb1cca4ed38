// Steps of few rows: one recording while each row's blocks have room in the state that it copies (kWholeStepBlocks),
// three beyond.
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/exec/executor.h"
#include "model/exec/kv_cache.h"
#include "tests/support/goldens.h"
#include "tests/support/test_device.h"

namespace lorad::model::few_rows_test {
namespace {

using namespace lorad::testing;

constexpr double kRelativeErrorMax = 1e-3;  // other numbers of rows are other tiles, and contexts are cut otherwise
constexpr uint32_t kRowsMax = 32, kRows = 2;

std::vector<TokenId> text(uint32_t n_tokens, TokenId first) {
    std::vector<TokenId> ids(n_tokens);
    std::iota(ids.begin(), ids.end(), first);
    return ids;
}

// Of the first kRows outputs.
std::vector<float> logits_of(Executor& executor, const StepBatch& batch) {
    EXPECT_TRUE(executor.submit(batch).ok());
    const auto output = executor.finish();
    EXPECT_TRUE(output.ok());
    std::vector<float> all;
    for (uint32_t i = 0; output.ok() && i < kRows; ++i) {
        const std::span<const float> logits = output->logits(i);
        all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
}

class FewRows : public ::testing::TestWithParam<uint32_t> {};

// A long text's blocks are all the same one, but for the last, which is of each row alone: it writes there.
TEST_P(FewRows, OfLongTextsAreWhatTheyAreInALargerStep) {
    const uint32_t position = GetParam(), n_blocks = blocks_for_tokens(position + 1);
    const std::filesystem::path folder = goldens_dir() / "models/qwen2-tied";
    auto config = load_model_config(folder);
    ASSERT_TRUE(config.ok());
    config->max_positions = round_up(position + 1, kBlockTokens);
    const auto executor = Executor::load(
        test_device(), folder, *config,
        {.n_rows_max = kRowsMax, .n_sequences_max = 4, .n_positions_max = config->max_positions, .n_adapter_slots = 1});
    ASSERT_TRUE(executor.ok()) << executor.error().message;
    constexpr BlockId kLong{0}, kPrompt{3};  // and each row's last: 1, 2
    for (const BlockId block : {BlockId{0}, BlockId{1}, BlockId{2}}) {
        for (uint32_t begin = 0; begin < kBlockTokens; begin += kRowsMax) {
            StepBatch batch;
            batch.add_rows(text(kRowsMax, static_cast<TokenId>(20 + begin + 70 * static_cast<uint32_t>(block))), begin,
                           {&block, 1}, kNoAdapterSlot);
            batch.add_output(kRowsMax - 1, true);
            EXPECT_TRUE((*executor)->submit(batch).ok());
            EXPECT_TRUE((*executor)->finish().ok());
        }
    }
    const auto add_rows = [&](StepBatch& batch) {
        for (uint32_t row = 0; row < kRows; ++row) {
            std::vector<BlockId> blocks(n_blocks, kLong);
            blocks.back() = BlockId{1 + row};
            batch.add_output(batch.add_rows(text(1, static_cast<TokenId>(5 + row)), position, blocks, kNoAdapterSlot),
                             true);
        }
    };
    StepBatch few, more;
    add_rows(few);
    add_rows(more);
    more.add_rows(text(kRowsMax - kRows, 40), 0, {&kPrompt, 1}, kNoAdapterSlot);
    const std::vector<float> got = logits_of(**executor, few), want = logits_of(**executor, more);
    ASSERT_EQ(got.size(), want.size());
    ASSERT_FALSE(want.empty());
    EXPECT_LE(relative_error(got.data(), want.data(), want.size()), kRelativeErrorMax);
}

// 64 blocks of each; as many as there is room for when that is rounded up, which is some 97, and more; far more.
INSTANTIATE_TEST_SUITE_P(Positions, FewRows, ::testing::Values(4095, 6143, 6400, 24000));

}  // namespace
}  // namespace lorad::model::few_rows_test
