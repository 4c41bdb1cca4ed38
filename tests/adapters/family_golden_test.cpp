// Each golden family with all its adapters: alone, mixed in one step, in chunks and merged, compared with transformers
// and PEFT.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>

#include <gtest/gtest.h>

#include "adapters/pool/registry.h"
#include "model/config/topology.h"
#include "model/exec/runner.h"
#include "model/weights/weights.h"
#include "tests/adapters/served.h"
#include "tests/support/families.h"

namespace lorad::adapters::family_golden_test {
namespace {

using namespace lorad::testing;
using model::Runner;

// Weights are exact, activations f32; the KV cache holds f16, or f32 where scores are not scaled down.
constexpr double kRelativeErrorMax = 2e-3;
constexpr double kRoundedErrorMax = 2e-2;

struct Answers {
    std::string name;
    uint32_t slot = kNoAdapterSlot;
    std::vector<GoldenPrompt> prompts;
    std::vector<std::vector<float>> last_logits;
    std::vector<std::vector<float>> merged_logits;  // as PEFT merged; empty where it did not
};

// Which is not merged.
bool changes_experts(model::Executor& executor, uint32_t slot) {
    const uint32_t stride = executor.config().lora_stride();
    const auto& modules = executor.lora_table().adapter(slot).modules;
    for (size_t i = 0; i < modules.size(); ++i) {
        const auto module = static_cast<model::LinearModule>(i % stride);
        if ((module == model::LinearModule::kExpertGateUp || module == model::LinearModule::kExpertDown) &&
            modules[i].rank != 0)
            return true;
    }
    return false;
}

class FamilyModel : public ::testing::TestWithParam<GoldenFamily> {
  protected:
    void SetUp() override {
        const std::string model = GetParam().model;
        served_ = Served::load(families_dir() / "models" / model);
        ASSERT_NE(served_, nullptr);
        const bool is_packed = served_->executor().weights().layers.front().expert_gate_up.is_packed();
        EXPECT_EQ(is_packed, served_->executor().config().quantization.method == model::QuantMethod::kMxfp4);
        answers_.push_back(read("base", families_dir() / "expected/models" / model));
        std::vector<std::string> names;
        for (const auto& entry : std::filesystem::directory_iterator(families_dir() / "adapters" / model))
            names.push_back(entry.path().filename());
        std::ranges::sort(names);
        for (const std::string& name : names) {
            const auto loaded = served_->registry().load(name, families_dir() / "adapters" / model / name);
            // Another set may hold what is refused by name.
            if (other_families() != nullptr && !loaded.ok() && loaded.error().code == ErrorCode::kAdapterUnsupported) {
                std::fprintf(stderr, "%s is refused: %s\n", name.c_str(), loaded.error().message.c_str());
                continue;
            }
            ASSERT_TRUE(loaded.ok()) << name << ": " << loaded.error().message;
            answers_.push_back(read(name, families_dir() / "expected/adapters" / model / name));
            answers_.back().slot = served_->slot_of(name);
        }
    }

    static Answers read(std::string name, const std::filesystem::path& stem) {
        Answers answers{.name = std::move(name), .prompts = read_golden_prompts(stem.string() + ".json")};
        const auto numbers = model::TensorFiles::map(stem.string() + ".safetensors", ErrorCode::kIo);
        EXPECT_TRUE(numbers.ok());
        for (size_t i = 0; i < answers.prompts.size(); ++i) {
            const std::string prompt = "prompt" + std::to_string(i);
            answers.last_logits.push_back(golden_floats(*numbers, prompt + ".last_logits"));
            const std::string merged = prompt + ".merged_last_logits";
            answers.merged_logits.push_back(numbers->find(merged) != nullptr ? golden_floats(*numbers, merged)
                                                                             : std::vector<float>());
        }
        return answers;
    }

    double error_of(const std::vector<float>& got, const std::vector<float>& want) {
        if (got.size() != want.size()) return 1e9;
        return relative_error(got.data(), want.data(), want.size());
    }

    void expect_logits_whole_and_in_chunks();
    void expect_greedy_tokens();
    void expect_mixed_as_alone();
    void expect_merged();

    std::unique_ptr<Served> served_;
    std::vector<Answers> answers_;
};

void FamilyModel::expect_logits_whole_and_in_chunks() {
    for (const Answers& answers : answers_) {
        for (size_t i = 0; i < answers.prompts.size(); ++i) {
            for (const uint32_t n_chunk_rows : {0u, 64u}) {
                if (n_chunk_rows != 0 &&
                    (answers.prompts[i].ids.size() <= n_chunk_rows || answers.slot != answers_.back().slot))
                    continue;
                Runner runner(served_->executor());
                const auto logits = runner.logits(answers.prompts[i].ids, false, answers.slot, n_chunk_rows);
                ASSERT_TRUE(logits.ok()) << logits.error().message;
                EXPECT_LE(error_of(*logits, answers.last_logits[i]), kRelativeErrorMax)
                    << answers.name << ", prompt " << i << " in chunks of " << n_chunk_rows;
            }
        }
    }
}

void FamilyModel::expect_greedy_tokens() {
    size_t n_certain_of_all = 0, n_prompts = 0;
    for (const Answers& answers : answers_) {
        for (size_t i = 0; i < answers.prompts.size(); ++i) {
            const GoldenPrompt& golden = answers.prompts[i];
            double norm = 0;
            for (const float value : answers.last_logits[i]) norm += double{value} * value;
            // An error of this norm, spread over the vocabulary, moves one logit by about its root mean square.
            const double logit_error =
                2.0 * kRelativeErrorMax * std::sqrt(norm / static_cast<double>(answers.last_logits[i].size()));
            const size_t n_certain = std::min<size_t>(n_certain_tokens(golden.margins, logit_error),
                                                      answers.slot == kNoAdapterSlot ? 24 : 12);
            Runner runner(served_->executor());
            const auto generated =
                runner.generate(golden.ids, {.n_tokens_max = answers.slot == kNoAdapterSlot ? 24u : 12u,
                                             .ignore_eos = true,
                                             .uses = model::uses_of(answers.slot)});
            ASSERT_TRUE(generated.ok()) << generated.error().message;
            EXPECT_TRUE(std::equal(golden.greedy.begin(), golden.greedy.begin() + static_cast<ptrdiff_t>(n_certain),
                                   generated->ids.begin()))
                << answers.name << ", prompt " << i << ", " << n_certain << " certain tokens";
            n_certain_of_all += n_certain;
            ++n_prompts;
        }
    }
    EXPECT_GE(n_certain_of_all, 8 * n_prompts) << "the margins decide little";
}

// One prompt for everybody in one step, or in as few as hold them: a row's answer is that of a step of its own.
void FamilyModel::expect_mixed_as_alone() {
    constexpr size_t kPrompt = 1;
    model::Executor& executor = served_->executor();
    for (size_t begin = 0, end = 0; begin < answers_.size(); begin = end) {
        model::StepBatch batch;
        std::vector<std::vector<BlockId>> tables;
        BlockId next{0};
        for (; end < answers_.size(); ++end) {
            const std::vector<TokenId>& ids = answers_[end].prompts[kPrompt].ids;
            if (batch.n_rows() + ids.size() > executor.options().n_rows_max) break;
            tables.emplace_back();
            for (uint32_t i = 0; i < model::blocks_for_tokens(static_cast<uint32_t>(ids.size())); ++i)
                tables.back().push_back(next++);
            const uint32_t row = batch.add_rows(ids, 0, tables.back(), answers_[end].slot);
            batch.add_output(row + static_cast<uint32_t>(ids.size()) - 1, true);
        }
        ASSERT_GT(end, begin);
        ASSERT_TRUE(executor.submit(batch).ok());
        const auto output = executor.finish();
        ASSERT_TRUE(output.ok()) << output.error().message;
        for (size_t i = begin; i < end; ++i) {
            const std::span<const float> logits = output->logits(static_cast<uint32_t>(i - begin));
            EXPECT_LE(error_of({logits.begin(), logits.end()}, answers_[i].last_logits[kPrompt]), kRelativeErrorMax)
                << answers_[i].name;
        }
    }
}

// PEFT merged in f32; lorad rounds what it merged to the matrices' type, which changes numbers by up to 2^-9 of their
// size in bf16. A product's error is some 2^-9 / sqrt(3) then, and a few times that after some layers:
// kRoundedErrorMax. Three kinds of models make more of it. Recurrences keep errors, choices of experts fall otherwise,
// and Gemma 4's scores are not scaled down: queries and keys have the length sqrt(head size), so scores are up to its
// size, 16 to 48 here, their errors up to 48 * 2^-9 = 0.09, and so are the relative ones of the softmax's weights,
// layer after layer: transformers itself, with merged weights rounded to bf16, is off by 0.06 to 0.16 on gemma4-e2b and
// by 0.006 to 0.011 on granite; in f16, 2^-12, by 0.004 to 0.008 on gemma4-dense. Such models are merged in f32, where
// nothing is rounded, and held to the tolerance of unmerged ones.
void FamilyModel::expect_merged() {
    const model::ModelConfig& config = served_->executor().config();
    bool in_f32 = model::topology_of(config).has(model::kFeatureOtherMixers | model::kFeatureExperts);
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) in_f32 |= config.layer(layer).attention.sensitive_keys;
    if (in_f32) {
        served_.reset();
        served_ = Served::load(families_dir() / "models" / GetParam().model, false, 24, gpu::KernelPath::kPortableF32,
                               gpu::PersistentDecode::kOff, gpu::ScalarType::kF32);
        for (Answers& answers : answers_) {
            if (answers.slot == kNoAdapterSlot) continue;
            ASSERT_TRUE(served_->registry()
                            .load(answers.name, families_dir() / "adapters" / GetParam().model / answers.name)
                            .ok());
            answers.slot = served_->slot_of(answers.name);
        }
    }
    model::Executor& executor = served_->executor();
    const double error_max = in_f32 ? kRelativeErrorMax : kRoundedErrorMax;
    for (const Answers& answers : answers_) {
        if (answers.slot == kNoAdapterSlot || answers.merged_logits.front().empty()) continue;
        const model::AdapterExtrasView& extras = executor.lora_table().adapter(answers.slot).extras;
        // PEFT's merge changes the one by the other
        if (executor.config().tied_embeddings && (extras.embed_rank != 0 || extras.head_rank != 0)) continue;
        auto merged = executor.merge(model::uses_of(answers.slot));
        if (changes_experts(executor, answers.slot)) {
            ASSERT_FALSE(merged.ok());
            EXPECT_EQ(merged.error().code, ErrorCode::kAdapterUnsupported);
            continue;
        }
        ASSERT_TRUE(merged.ok()) << merged.error().message;
        executor.use_merged(*merged);
        for (size_t i = 0; i < answers.prompts.size(); ++i) {
            Runner runner(executor);
            runner.set_merged(true);
            const auto logits = runner.logits(answers.prompts[i].ids, false, answers.slot);
            ASSERT_TRUE(logits.ok()) << logits.error().message;
            EXPECT_LE(error_of(*logits, answers.merged_logits[i]), error_max) << answers.name << ", prompt " << i;
        }
        executor.use_merged(nullptr);
    }
}

// In one test, since a model's kernels are compiled for each test.
TEST_P(FamilyModel, AnswersAsTheReferenceAloneMixedInChunksAndMerged) {
    expect_logits_whole_and_in_chunks();
    expect_greedy_tokens();
    expect_mixed_as_alone();
    expect_merged();
}

INSTANTIATE_TEST_SUITE_P(All, FamilyModel, ::testing::ValuesIn(golden_families()), family_test_name);

}  // namespace
}  // namespace lorad::adapters::family_golden_test
