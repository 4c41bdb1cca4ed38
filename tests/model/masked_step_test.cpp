// Steps whose outputs grammars mask: begun before the masks are there, and before the tokens of the step before are
// known. The tokens are those that the host draws from the same logits.
#include <bit>
#include <cmath>

#include <gtest/gtest.h>

#include "model/exec/executor.h"
#include "model/forward/forward.h"
#include "model/output/logits.h"
#include "model/output/sampler.h"
#include "tests/support/goldens.h"
#include "tests/support/load_executor.h"

namespace lorad::model::masked_step_test {
namespace {

using namespace lorad::testing;

constexpr uint32_t kSequences = 4, kTokens = 14;
const std::vector<TokenId> kPrompts[kSequences] = {{3, 99, 512, 8}, {7, 21}, {5}, {400, 9, 9}};

// What may come at a position of a sequence: a token in 16, or exactly one.
std::vector<uint32_t> mask_of(uint32_t sequence, uint32_t position, uint32_t vocab) {
    std::vector<uint32_t> words(mask_words(vocab), 0);
    uint64_t state = sequence * 1000003ull + position * 7919ull + 17;
    const auto next = [&] { return (state = state * 6364136223846793005ull + 1442695040888963407ull) >> 33; };
    for (uint32_t n = position % 5 == 4 ? 1 : vocab / 16; n > 0; --n) {
        const auto id = static_cast<uint32_t>(next() % vocab);
        words[id / 32] |= 1u << (id % 32);
    }
    return words;
}

bool is_masked(uint32_t sequence) { return sequence != 2; }

proto::SamplingParams params_of(uint32_t sequence) {
    proto::SamplingParams params{.temperature = 0.0f, .seed = sequence + 1};
    if (sequence != 0) params.temperature = 1.3f;
    if (sequence == 1) params.top_p = 0.9f;
    if (sequence == 3) params.frequency_penalty = 0.8f;
    return params;
}

class MaskedStep : public ::testing::Test {
  protected:
    static std::unique_ptr<Executor> load(gpu::PersistentDecode decode = gpu::PersistentDecode::kAuto,
                                          uint64_t fault_step = 0) {
        ExecutorOptions options{
            .n_rows_max = 32, .n_sequences_max = kSequences, .n_positions_max = 64, .n_adapter_slots = 1};
        options.decode = decode;
        options.decode_fault_step = fault_step;
        return load_executor(goldens_dir() / "models" / "qwen2-tied", options);
    }

    struct Row {
        uint32_t sequence;
        TokenChanges changes;
        std::vector<TokenId> tokens;
    };
    static std::vector<Row> rows_of(std::span<const uint32_t> sequences) {
        std::vector<Row> rows;
        for (const uint32_t sequence : sequences) {
            rows.push_back({sequence, TokenChanges(params_of(sequence), kPrompts[sequence], {}), kPrompts[sequence]});
        }
        return rows;
    }
    static gpu::ChoiceRule rule_of(uint32_t sequence, uint32_t position) {
        gpu::ChoiceRule rule = choice_rule(params_of(sequence), position);
        if (params_of(sequence).has_penalties()) add_changes(params_of(sequence), rule);
        return rule;
    }
    // n_known: tokens that the host knows; the row of what comes behind them is fed back.
    static uint32_t add(StepBatch& batch, const Row& row, uint32_t output, uint32_t n_tokens) {
        const BlockId block{row.sequence};
        if (n_tokens > row.tokens.size())
            return batch.add_fed_back_row(output, n_tokens - 1, {&block, 1}, kNoAdapterSlot);
        const bool is_prompt = n_tokens == kPrompts[row.sequence].size();
        const uint32_t first = is_prompt ? 0 : n_tokens - 1;
        const auto tokens = std::span(row.tokens).subspan(first, n_tokens - first);
        return batch.add_rows(tokens, first, {&block, 1}, kNoAdapterSlot) + static_cast<uint32_t>(tokens.size()) - 1;
    }
    static void write_masks(Executor& executor, std::span<const Row> rows, uint32_t step) {
        const uint32_t vocab = executor.config().vocab_size;
        auto masks = executor.masks();
        for (const Row& row : rows) {
            if (!is_masked(row.sequence)) continue;
            const auto words =
                mask_of(row.sequence, static_cast<uint32_t>(kPrompts[row.sequence].size()) + step, vocab);
            std::ranges::copy(words, masks.begin());
            masks = masks.subspan(words.size());
        }
        EXPECT_TRUE(masks.empty());
    }

    // Tokens by row: all logits come to the host, which masks and draws, one step after the other.
    static std::vector<std::vector<TokenId>> on_host(Executor& executor, std::span<const uint32_t> sequences) {
        auto rows = rows_of(sequences);
        SamplerScratch scratch;
        for (uint32_t step = 0; step < kTokens; ++step) {
            StepBatch batch;
            for (const Row& row : rows)
                batch.add_output(add(batch, row, 0, static_cast<uint32_t>(row.tokens.size())), true);
            EXPECT_TRUE(executor.submit(batch).ok());
            const auto output = executor.finish();
            EXPECT_TRUE(output.ok());
            for (uint32_t i = 0; i < rows.size(); ++i) {
                Row& row = rows[i];
                const auto position = static_cast<uint32_t>(row.tokens.size());
                std::vector<float> logits(output->logits(i).begin(), output->logits(i).end());
                if (is_masked(row.sequence))
                    apply_mask(logits, mask_of(row.sequence, position, executor.config().vocab_size));
                const gpu::ChoiceRule rule = rule_of(row.sequence, position);
                change_logits(logits, rule, row.changes.entries());
                row.tokens.push_back(sample(logits, rule, scratch));
                row.changes.add_generated(row.tokens.back());
            }
        }
        std::vector<std::vector<TokenId>> tokens;
        for (Row& row : rows) tokens.push_back(std::move(row.tokens));
        return tokens;
    }

    // The same on the device, a step ahead.
    static std::vector<std::vector<TokenId>> on_device(Executor& executor, std::span<const uint32_t> sequences) {
        auto rows = rows_of(sequences);
        const auto submit = [&](uint32_t step) {
            StepBatch batch;
            for (uint32_t i = 0; i < rows.size(); ++i) {
                const uint32_t sequence = rows[i].sequence;
                const auto n_tokens = static_cast<uint32_t>(kPrompts[sequence].size()) + step;
                gpu::ChoiceRule rule = rule_of(sequence, n_tokens);
                if (is_masked(sequence)) rule.what |= gpu::kRuleMasked;
                if (sequence == 1) rule.what |= gpu::kRuleLogprobs;
                batch.add_output(add(batch, rows[i], i, n_tokens), rule, rows[i].changes.entries());
            }
            EXPECT_TRUE(executor.submit(batch).ok());
        };
        const auto finish = [&] {
            const auto output = executor.finish();
            ASSERT_TRUE(output.ok());
            for (uint32_t i = 0; i < rows.size(); ++i) {
                rows[i].tokens.push_back(output->sampled[i]);
                rows[i].changes.add_generated(output->sampled[i]);
                if (rows[i].sequence == 1) {
                    EXPECT_LT(output->logprobs[i].logprob, 0.0f);
                    EXPECT_TRUE(std::isfinite(output->logprobs[i].logprob)) << "of the model's own logits";
                }
            }
        };
        submit(0);
        write_masks(executor, rows, 0);
        EXPECT_TRUE(executor.submit_draw().ok());
        for (uint32_t step = 1; step < kTokens; ++step) {
            submit(step);
            EXPECT_EQ(executor.n_in_flight(), 2u);
            finish();
            write_masks(executor, rows, step);
            EXPECT_TRUE(executor.submit_draw().ok());
        }
        finish();
        std::vector<std::vector<TokenId>> tokens;
        for (Row& row : rows) tokens.push_back(std::move(row.tokens));
        return tokens;
    }
};

TEST_F(MaskedStep, TokensDrawnAStepAheadAreTheHosts) {
    const auto executor = load();
    const uint32_t sequences[] = {0, 1, 2, 3};
    const auto expected = on_host(*executor, sequences);
    EXPECT_EQ(on_device(*executor, sequences), expected);
    // Tokens that the masks allow, as a check of the check.
    for (uint32_t i = 0; i < kSequences; ++i) {
        const auto n_prompt = static_cast<uint32_t>(kPrompts[i].size());
        for (uint32_t position = n_prompt; is_masked(i) && position < expected[i].size(); ++position) {
            const auto token = static_cast<uint32_t>(expected[i][position]);
            EXPECT_TRUE(mask_of(i, position, executor->config().vocab_size)[token / 32] >> (token % 32) & 1u);
        }
    }
    const uint64_t n_recordings = executor->n_recordings();
    EXPECT_EQ(on_device(*executor, sequences), expected);
    EXPECT_EQ(executor->n_recordings(), n_recordings) << "the second time there is nothing to record";
}

// All layers of a row in one dispatch; then with steps in flight that have to be computed again, one of them not drawn
// yet.
TEST_F(MaskedStep, OneRowInOneDispatchAndStepsDoneAgain) {
    const uint32_t sequences[] = {1};
    const auto executor = load(gpu::PersistentDecode::kOn);
    ASSERT_TRUE(executor->decodes_in_one_dispatch());
    const auto expected = on_device(*executor, sequences);
    EXPECT_TRUE(executor->decodes_in_one_dispatch());
    for (const uint64_t fault_step : {1u, 6u}) {
        const auto faulty = load(gpu::PersistentDecode::kOn, fault_step);
        EXPECT_EQ(on_device(*faulty, sequences), expected) << "fault at step " << fault_step;
        EXPECT_FALSE(faulty->decodes_in_one_dispatch());
    }
}

}  // namespace
}  // namespace lorad::model::masked_step_test
