// Tokens of steps of which nobody reads the logits, which on some devices are never written, are those of steps whose
// logits are read.
#include <algorithm>
#include <cstring>
#include <functional>

#include <gtest/gtest.h>

#include "model/exec/executor.h"
#include "model/weights/lora_table.h"
#include "tests/support/random_model.h"
#include "tests/support/test_device.h"

namespace lorad::model::greedy_tokens_test {
namespace {

using namespace lorad::testing;

// A vocabulary that ends within a tile of columns, of any kernel.
constexpr RandomModel::Shape kShape{
    .hidden = 256, .heads = 2, .kv_heads = 1, .head_dim = 128, .ffn = 512, .layers = 1, .vocab = 3001};
constexpr uint32_t kRowsMax = 128;
constexpr TokenId kWanted = 5;
constexpr float kNear = 1e-3f;  // another kernel may add in another order

struct Greedy {
    std::vector<TokenId> tokens;
    std::vector<float> max_logits, log_sum_exps, logits;  // the last of those that were wanted, else empty
    uint32_t n_dispatches = 0;
};

class GreedyTokens : public ::testing::Test {
  protected:
    void SetUp() override {
        auto config = load_model_config(model_.folder());
        ASSERT_TRUE(config.ok());
        auto loaded = Executor::load(
            test_device(), model_.folder(), *config,
            {.n_rows_max = kRowsMax, .n_sequences_max = kRowsMax, .n_positions_max = 64, .n_adapter_slots = 1});
        ASSERT_TRUE(loaded.ok()) << loaded.error().message;
        executor_ = std::move(loaded).value();
    }

    using AddOutput = std::function<void(StepBatch& batch, uint32_t row)>;
    // Each of n rows of a sequence of its own, row i with slot_of(i).
    Greedy decode(
        uint32_t n, const AddOutput& add_output,
        const std::function<uint32_t(uint32_t)>& slot_of = [](uint32_t) { return kNoAdapterSlot; }) {
        StepBatch batch;
        for (uint32_t i = 0; i < n; ++i) {
            const BlockId block{i};
            const auto token = static_cast<TokenId>((1 + 31 * i) % kShape.vocab);
            add_output(batch, batch.add_rows({&token, 1}, 0, {&block, 1}, slot_of(i)));
        }
        EXPECT_TRUE(executor_->submit(batch).ok());
        const auto output = executor_->finish();
        EXPECT_TRUE(output.ok());
        Greedy greedy;
        greedy.tokens.assign(output->sampled.begin(), output->sampled.end());
        greedy.max_logits.assign(output->max_logits.begin(), output->max_logits.end());
        greedy.log_sum_exps.assign(output->log_sum_exps.begin(), output->log_sum_exps.end());
        greedy.n_dispatches = output->n_dispatches;
        for (uint32_t i = 0; i < n; ++i) {
            if (batch.outputs()[i].want_logits)
                greedy.logits.insert(greedy.logits.end(), output->logits(i).begin(), output->logits(i).end());
        }
        return greedy;
    }
    Greedy read(uint32_t n) {
        return decode(n, [](StepBatch& batch, uint32_t row) { batch.add_output(row, true); });
    }
    Greedy unread(uint32_t n) {
        return decode(n, [](StepBatch& batch, uint32_t row) { batch.add_output(row, false); });
    }

    // The greatest of a row's logits, or one that is all but equal to it.
    static void expect_best(const float* logits, TokenId token, const std::string& what) {
        ASSERT_TRUE(token >= 0 && token < static_cast<TokenId>(kShape.vocab)) << what << ": " << token;
        EXPECT_NEAR(logits[token], *std::max_element(logits, logits + kShape.vocab), kNear) << what;
    }

    RandomModel model_{kShape};
    std::unique_ptr<Executor> executor_;
};

TEST_F(GreedyTokens, DoNotDependOnWhoReadsTheLogits) {
    for (const uint32_t n : {1u, 3u, 16u, 17u, 24u, 40u, 64u, 80u, 128u}) {
        const Greedy with = read(n), without = unread(n);
        ASSERT_EQ(without.tokens.size(), n);
        for (uint32_t i = 0; i < n; ++i) {
            const std::string what = std::to_string(n) + " rows, row " + std::to_string(i);
            const float* logits = &with.logits[size_t{i} * kShape.vocab];
            EXPECT_EQ(with.tokens[i], std::max_element(logits, logits + kShape.vocab) - logits) << what;
            expect_best(logits, without.tokens[i], what);
            EXPECT_NEAR(without.max_logits[i], with.max_logits[i], kNear) << what;
            EXPECT_NEAR(without.log_sum_exps[i], with.log_sum_exps[i], kNear) << what;
        }
        // The product and what joins its parts, instead of the product and two dispatches of the argmax.
        const bool tells = test_device().capabilities().warpgroup_matrices && ((n > 16 && n <= 64) || n == 128);
        EXPECT_EQ(with.n_dispatches - without.n_dispatches, tells ? 1u : 0u) << n << " rows";
    }
}

// What one output of many wants, all of the step's have.
TEST_F(GreedyTokens, OneOutputThatReadsLogitsHasThem) {
    for (const uint32_t n : {24u, 64u}) {
        const Greedy all = read(n),
                     one = decode(n, [&](StepBatch& batch, uint32_t row) { batch.add_output(row, row + 1 == n); });
        ASSERT_EQ(one.logits.size(), kShape.vocab);
        EXPECT_EQ(
            0, std::memcmp(one.logits.data(), &all.logits[size_t{n - 1} * kShape.vocab], kShape.vocab * sizeof(float)));
        EXPECT_EQ(one.tokens, all.tokens);
    }
}

TEST_F(GreedyTokens, OneOutputWithARuleHasItsWay) {
    for (const uint32_t n : {24u, 64u}) {
        const Greedy all = read(n), ruled = decode(n, [&](StepBatch& batch, uint32_t row) {
                                        if (row == n / 2)
                                            batch.add_output(row, gpu::ChoiceRule{}, {}, std::span(&kWanted, 1));
                                        else
                                            batch.add_output(row, false);
                                    });
        for (uint32_t i = 0; i < n; ++i)
            EXPECT_EQ(ruled.tokens[i], i == n / 2 ? kWanted : all.tokens[i]) << "row " << i;
    }
}

TEST_F(GreedyTokens, OneAdapterThatChangesTheOutputLayerDoes) {
    std::vector<float> bias(kShape.vocab);
    bias[kWanted] = 1e4f;
    auto buffer = test_device().create_buffer(bias.size() * sizeof(float), gpu::MemoryKind::kHostUpload, "bias");
    ASSERT_TRUE(buffer.ok());
    std::memcpy(buffer->mapped().data(), bias.data(), bias.size() * sizeof(float));
    AdapterView view;
    view.modules.resize(size_t{kShape.layers} * kLinearModules);
    view.extras.head_bias = buffer->address();
    view.has_extras = true;
    ASSERT_TRUE(executor_->lora_table().set(0, view).ok());
    for (const uint32_t n : {24u, 64u}) {
        const Greedy all = read(n), biased = decode(
                                        n, [](StepBatch& batch, uint32_t row) { batch.add_output(row, false); },
                                        [&](uint32_t i) { return i == n / 3 ? 0 : kNoAdapterSlot; });
        for (uint32_t i = 0; i < n; ++i) {
            if (i == n / 3)
                EXPECT_EQ(biased.tokens[i], kWanted);
            else
                expect_best(&all.logits[size_t{i} * kShape.vocab], biased.tokens[i],
                            std::to_string(n) + " rows, row " + std::to_string(i));
        }
    }
}

}  // namespace
}  // namespace lorad::model::greedy_tokens_test
