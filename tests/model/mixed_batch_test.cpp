// Sequences that share steps answer as they do alone: prefill chunks beside decodes, with adapters, with mixes of them,
// without.

#include <algorithm>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "model/exec/kv_cache.h"
#include "model/exec/runner.h"
#include "model/step/step_state.h"
#include "tests/support/goldens.h"
#include "tests/support/load_executor.h"
#include "tests/support/synthetic_lora.h"
#include "tests/support/test_device.h"

namespace lorad::model::mixed_batch_test {
namespace {

using namespace lorad::testing;

constexpr uint32_t kSlots = 4;  // the last one has gains and biases
constexpr uint32_t kGenerated = 10;

struct Answer {
    std::vector<TokenId> ids;
    std::vector<std::vector<float>> logits;  // that each id was chosen from
};

struct Sequence {
    std::vector<TokenId> known;  // prompt and answer so far
    uint32_t n_prompt = 0;
    uint32_t n_computed = 0;
    std::vector<LoraUse> uses;
    uint32_t uses_from = 0;
    std::vector<BlockId> blocks;
    Answer answer;
    bool is_done() const { return answer.ids.size() == kGenerated; }
};

std::unique_ptr<Executor> load(const char* name, bool batch_invariant) {
    ExecutorOptions options;
    options.n_rows_max = 40;
    options.n_sequences_max = 8;
    options.n_positions_max = 256;
    options.n_adapter_slots = kSlots;
    options.n_kv_blocks = 9;  // few, so that blocks go round
    options.kernel_path = gpu::KernelPath::kPortableF32;
    options.batch_invariant = batch_invariant;
    return load_executor(goldens_dir() / "models" / name, options);
}

enum class Rows { kBase, kAdapters, kMixes };

std::vector<Sequence> make_sequences(const ModelConfig& config, Rows rows, std::mt19937& random) {
    std::vector<Sequence> sequences(12);
    for (size_t i = 0; i < sequences.size(); ++i) {
        Sequence& sequence = sequences[i];
        sequence.n_prompt = 1 + random() % (i % 3 == 0 ? 170 : 40);
        for (uint32_t t = 0; t < sequence.n_prompt; ++t)
            sequence.known.push_back(static_cast<TokenId>(random() % config.vocab_size));
        const uint32_t slot = random() % kSlots;
        if (rows == Rows::kAdapters && slot < kSlots - 1) sequence.uses = uses_of(slot);
        if (rows != Rows::kMixes) continue;
        const uint32_t n_uses = random() % (kLoraUsesMax + 1);
        for (uint32_t u = 0; u < n_uses; ++u) {
            const float scale = i % 3 == 0 ? 1.0f : std::uniform_real_distribution<float>(-0.6f, 0.6f)(random);
            sequence.uses.push_back({static_cast<uint32_t>(random() % kSlots), scale});
        }
        if (i % 4 == 1) sequence.uses_from = static_cast<uint32_t>(random() % sequence.n_prompt);
    }
    return sequences;
}

// A scheduler without manners: any sequences, any chunks, in any order, as far as blocks and rows last.
void run_mixed(Executor& executor, std::vector<Sequence>& sequences, std::mt19937& random) {
    BlockPool pool(executor.n_kv_blocks());
    std::vector<uint32_t> waiting(sequences.size()), running;
    for (uint32_t i = 0; i < waiting.size(); ++i) waiting[i] = i;
    StepBatch batch;
    uint32_t n_mixed_steps = 0;
    while (!waiting.empty() || !running.empty()) {
        while (!waiting.empty() && running.size() < executor.options().n_sequences_max) {
            Sequence& next = sequences[waiting.back()];
            if (!pool.allocate(blocks_for_tokens(next.n_prompt + kGenerated), next.blocks)) break;
            running.push_back(waiting.back());
            waiting.pop_back();
        }
        std::ranges::shuffle(running, random);
        batch.clear();
        std::vector<uint32_t> answering;
        uint32_t n_rows_left = executor.options().n_rows_max, n_decodes = 0, n_chunks = 0;
        for (const uint32_t idx : running) {
            Sequence& sequence = sequences[idx];
            const auto n_open = static_cast<uint32_t>(sequence.known.size()) - sequence.n_computed;
            const uint32_t n_rows = std::min({n_open, n_rows_left, 1 + static_cast<uint32_t>(random() % 32)});
            if (n_rows == 0 || random() % 8 == 0) continue;
            const uint32_t first =
                batch.add_rows(std::span(sequence.known).subspan(sequence.n_computed, n_rows), sequence.n_computed,
                               sequence.blocks, RowAdapters{sequence.uses, sequence.uses_from});
            sequence.n_computed += n_rows;
            n_rows_left -= n_rows;
            (n_open == 1 ? n_decodes : n_chunks) += 1;
            if (n_rows < n_open) continue;
            batch.add_output(first + n_rows - 1, true);
            answering.push_back(idx);
        }
        if (batch.n_rows() == 0) continue;
        n_mixed_steps += n_decodes > 0 && n_chunks > 0;
        ASSERT_TRUE(executor.submit(batch).ok());
        const auto output = executor.finish();
        ASSERT_TRUE(output.ok()) << output.error().message;
        for (uint32_t i = 0; i < answering.size(); ++i) {
            Sequence& sequence = sequences[answering[i]];
            const auto logits = output->logits(i);
            sequence.answer.logits.emplace_back(logits.begin(), logits.end());
            sequence.answer.ids.push_back(output->sampled[i]);
            sequence.known.push_back(output->sampled[i]);
            if (!sequence.is_done()) continue;
            pool.release(sequence.blocks);
            sequence.blocks.clear();
            std::erase(running, answering[i]);
        }
    }
    EXPECT_EQ(pool.n_free(), pool.n_blocks());
    EXPECT_GT(n_mixed_steps, 5u);
}

// Logits after the prompt and after each answer id but the last, with nobody else in the step.
Answer run_alone(Executor& executor, const Sequence& sequence, uint32_t n_chunk_rows) {
    Answer answer;
    const std::span<const TokenId> known(sequence.known);
    const auto generated = Runner(executor).generate(known.first(sequence.n_prompt), {.n_tokens_max = kGenerated,
                                                                                      .ignore_eos = true,
                                                                                      .uses = sequence.uses,
                                                                                      .uses_from = sequence.uses_from,
                                                                                      .n_chunk_rows = n_chunk_rows});
    EXPECT_TRUE(generated.ok());
    answer.ids = generated->ids;
    for (uint32_t i = 0; i < 2; ++i) {  // the first is a prefill's, the second a decode's
        auto logits = Runner(executor).logits(known.first(sequence.n_prompt + i), false,
                                              RowAdapters{sequence.uses, sequence.uses_from}, n_chunk_rows);
        EXPECT_TRUE(logits.ok());
        answer.logits.push_back(std::move(logits).value());
    }
    return answer;
}

class MixedBatch : public ::testing::TestWithParam<std::tuple<const char*, Rows>> {
  protected:
    const char* model() const { return std::get<0>(GetParam()); }
    Rows rows() const { return std::get<1>(GetParam()); }

    std::vector<std::vector<gpu::Buffer>> put_adapters(Executor& executor) {
        std::vector<std::vector<gpu::Buffer>> kept;
        const uint32_t ranks[kSlots] = {4, 16, 33, 8}, modules[kSlots] = {0x7f, 0x05, 0x78, 0x40};
        for (uint32_t slot = 0; slot < kSlots; ++slot) {
            kept.push_back(put_synthetic_lora(test_device(), executor.lora_table(), executor.config(), slot,
                                              ranks[slot], modules[slot], 0.5f, 77 + slot, slot == kSlots - 1));
        }
        return kept;
    }
};

TEST_P(MixedBatch, ChoosesTheTokensOfTheSoloRun) {
    const auto executor = load(model(), false);
    const auto adapters = put_adapters(*executor);
    for (uint32_t seed = 1; seed <= 2; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937 random(seed);
        auto sequences = make_sequences(executor->config(), rows(), random);
        run_mixed(*executor, sequences, random);
        for (const Sequence& sequence : sequences) {
            const Answer alone = run_alone(*executor, sequence, 1 + random() % 40);
            for (size_t i = 0; i < kGenerated; ++i) {
                if (sequence.answer.ids[i] == alone.ids[i]) continue;
                // Only a near-tie may be broken otherwise: both tokens within the f32 reordering error of each other.
                const auto& logits = sequence.answer.logits[i];
                EXPECT_NEAR(logits[static_cast<size_t>(sequence.answer.ids[i])],
                            logits[static_cast<size_t>(alone.ids[i])], 2e-3);
                break;
            }
            const auto& mixed = sequence.answer.logits[0];
            EXPECT_LE(relative_error(mixed.data(), alone.logits[0].data(), mixed.size()), 1e-3);
        }
    }
}

TEST_P(MixedBatch, IsBitForBitTheSoloRunWhenBatchInvariant) {
    const auto executor = load(model(), true);
    const auto adapters = put_adapters(*executor);
    std::mt19937 random(3);
    auto sequences = make_sequences(executor->config(), rows(), random);
    run_mixed(*executor, sequences, random);
    for (const Sequence& sequence : sequences) {
        const Answer alone = run_alone(*executor, sequence, 1 + random() % 40);
        EXPECT_EQ(sequence.answer.ids, alone.ids);
        for (size_t i = 0; i < alone.logits.size(); ++i)
            EXPECT_EQ(sequence.answer.logits[i], alone.logits[i]) << "answer " << i;
    }
}

std::string name_of(const ::testing::TestParamInfo<MixedBatch::ParamType>& info) {
    std::string name = std::get<0>(info.param);
    std::ranges::replace(name, '-', '_');
    const Rows rows = std::get<1>(info.param);
    return name + (rows == Rows::kBase ? "_base" : rows == Rows::kAdapters ? "_with_adapters" : "_with_mixes");
}

// Each kind of rows on one model, and on the others one kind each, which the slow set has with all.
INSTANTIATE_TEST_SUITE_P(All, MixedBatch,
                         ::testing::Values(MixedBatch::ParamType{"qwen2-tied", Rows::kBase},
                                           MixedBatch::ParamType{"qwen2-tied", Rows::kAdapters},
                                           MixedBatch::ParamType{"qwen2-tied", Rows::kMixes},
                                           MixedBatch::ParamType{"mistral-window", Rows::kMixes},
                                           MixedBatch::ParamType{"phi3-sharded", Rows::kAdapters}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(SlowAll, MixedBatch,
                         ::testing::Combine(::testing::Values("mistral-window", "phi3-sharded"),
                                            ::testing::Values(Rows::kBase, Rows::kAdapters, Rows::kMixes)),
                         name_of);

TEST(LoraStep, ChangesTheRowsOfItsSlotAlone) {
    const auto executor = load("qwen2-tied", true);
    const auto adapter =
        put_synthetic_lora(test_device(), executor->lora_table(), executor->config(), 1, 8, 0x7f, 1.0f, 5);
    const std::vector<TokenId> tokens = {5, 17, 300, 42};
    Runner runner(*executor);
    const auto base = runner.logits(tokens, false), adapted = runner.logits(tokens, false, 1),
               empty_slot = runner.logits(tokens, false, 2);
    ASSERT_TRUE(base.ok() && adapted.ok() && empty_slot.ok());
    EXPECT_GT(relative_error(adapted->data(), base->data(), base->size()), 0.05);
    EXPECT_EQ(*empty_slot, *base);
}

class LoraMix : public ::testing::Test {
  protected:
    explicit LoraMix(bool batch_invariant = true) : batch_invariant_(batch_invariant) {}

    std::vector<float> logits(std::vector<LoraUse> uses, uint32_t from = 0) {
        auto made = Runner(*executor_).logits(tokens_, false, RowAdapters{uses, from}, 3);
        EXPECT_TRUE(made.ok());
        return std::move(made).value();
    }
    std::vector<gpu::Buffer> put(uint32_t slot, uint32_t rank, float scale, uint32_t seed, bool with_gains = false) {
        return put_synthetic_lora(test_device(), executor_->lora_table(), executor_->config(), slot, rank, 0x7f, scale,
                                  seed, with_gains);
    }

    // Name and number of calls, of a step of four decodes.
    std::vector<std::pair<std::string, uint64_t>> kernels(const std::vector<uint32_t>& slots) {
        const auto profile = executor_->profile({4, 10}, slots, 1);
        EXPECT_TRUE(profile.ok());
        std::vector<std::pair<std::string, uint64_t>> names;
        for (const gpu::KernelProfile& kernel : *profile) names.emplace_back(kernel.name, kernel.n_calls);
        std::ranges::sort(names);
        return names;
    }

    const bool batch_invariant_;
    const std::unique_ptr<Executor> executor_ = load("qwen2-tied", batch_invariant_);
    const std::vector<TokenId> tokens_ = {5, 17, 300, 42, 7, 99};
};

TEST_F(LoraMix, TheScaleOfTheRequestActsAsTheAdaptersOwn) {
    const auto half = put(0, 16, 0.5f, 5), whole = put(1, 16, 1.0f, 5);
    EXPECT_EQ(logits({{0, 2.0f}}), logits({{1, 1.0f}}));
    EXPECT_EQ(logits({{1, 0.5f}}), logits({{0, 1.0f}}));
    EXPECT_NE(logits({{0, 1.0f}}), logits({{1, 1.0f}}));
}

TEST_F(LoraMix, DeltasAddUp) {
    const auto first = put(0, 16, 0.5f, 5), second = put(1, 3, 0.7f, 6), third = put(2, 8, 0.4f, 7, true);
    const auto near = [&](const std::vector<LoraUse>& uses, const std::vector<LoraUse>& same) {
        const auto got = logits(uses), want = logits(same);
        return relative_error(got.data(), want.data(), got.size());
    };
    // Equal in real numbers; f32 sums in another order, through all layers, and a delta that cancels.
    EXPECT_LE(near({{0, 0.25f}, {1, 1.0f}, {0, 0.75f}}, {{0, 1.0f}, {1, 1.0f}}), 1e-4);
    EXPECT_LE(near({{2, 1.0f}, {1, -0.5f}, {0, 0.5f}}, {{0, 0.5f}, {1, -0.5f}, {2, 1.0f}}), 1e-4);
    EXPECT_LE(near({{2, 0.5f}, {0, 1.0f}, {2, -0.5f}}, {{0, 1.0f}}), 1e-4);
    EXPECT_GT(near({{0, 1.0f}, {1, 1.0f}}, {{0, 1.0f}}), 1e-3);
    EXPECT_GT(near({{2, 1.0f}, {0, 1.0f}}, {{0, 1.0f}}), 1e-3);
}

// Steps whose bits may depend on their other rows.
class LoraRanks : public LoraMix {
  protected:
    LoraRanks() : LoraMix(false) {}
};

// By a dispatch of their own where the row's adapter is plain, in the consumers of the sums where it comes as a mix.
TEST_F(LoraRanks, ManyAreTheSameExpandedApart) {
    const auto many = put(0, 64, 0.3f, 5), more = put(1, 200, 0.2f, 6);
    for (const uint32_t slot : {0u, 1u}) {
        const auto apart = logits({{slot, 1.0f}}), mixed = logits({{slot, 0.25f}, {slot, 0.75f}}), base = logits({});
        EXPECT_LE(relative_error(apart.data(), mixed.data(), mixed.size()), 1e-4) << slot;
        EXPECT_GT(relative_error(apart.data(), base.data(), base.size()), 1e-2) << slot;
    }
}

TEST_F(LoraRanks, OnlyManyAreExpandedApart) {
    const auto few = put(0, 32, 0.3f, 5), many = put(1, 33, 0.3f, 6);
    const auto expands = [&](const std::vector<uint32_t>& slots) {
        return std::ranges::any_of(kernels(slots), [](const auto& kernel) { return kernel.first == "lora_expand"; });
    };
    EXPECT_FALSE(expands({0}));
    EXPECT_TRUE(expands({0, 1}));
}

TEST_F(LoraMix, WithoutAdaptersTheBitsAreThoseOfTheBase) {
    const auto base = logits({});
    const auto first = put(0, 16, 0.5f, 5), second = put(1, 8, 0.4f, 7, true);
    EXPECT_EQ(logits({}), base);
    EXPECT_EQ(logits({{1, 1.0f}, {0, 1.0f}}, static_cast<uint32_t>(tokens_.size())), base);
    EXPECT_NE(logits({{1, 1.0f}, {0, 1.0f}}, static_cast<uint32_t>(tokens_.size()) - 1), base);
}

TEST_F(LoraMix, AStepOfBaseRowsRunsNoLoraKernelWhateverIsLoaded) {
    const auto before = kernels({});
    const auto first = put(0, 16, 0.5f, 5), second = put(1, 8, 0.4f, 7, true);
    EXPECT_EQ(kernels({}), before);
    EXPECT_TRUE(std::ranges::none_of(
        before, [](const auto& kernel) { return kernel.first.find("lora") != std::string::npos; }));
    StepBatch batch;
    const std::vector<BlockId> blocks = {0};
    batch.add_rows(tokens_, 0, blocks, RowAdapters{});
    const SlotLookup slots = [&](uint32_t slot) -> const SlotTraits& { return executor_->lora_table().traits(slot); };
    const BatchTraits traits = traits_of(batch, slots, {});
    EXPECT_EQ(traits.lora, gpu::LoraLevel::kNone);
    EXPECT_FALSE(traits.has_extras);
}

}  // namespace
}  // namespace lorad::model::mixed_batch_test
