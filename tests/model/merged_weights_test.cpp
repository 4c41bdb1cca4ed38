// Adapters as part of the base weights: the same answers as unmerged, and the pristine weights as they were.

#include <atomic>
#include <cstdlib>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/exec/runner.h"
#include "tests/support/goldens.h"
#include "tests/support/load_executor.h"
#include "tests/support/number_from.h"
#include "tests/support/read_back.h"
#include "tests/support/synthetic_lora.h"
#include "tests/support/test_device.h"

namespace lorad::model::merged_weights_test {
namespace {

using namespace lorad::testing;
using ::testing::HasSubstr;

constexpr uint32_t kSlots = 4;

// Rounding the merged weights costs unit roundoff / sqrt(3) in each matrix product, a few times over the layers; the KV
// cache holds f16 in any case.
double merged_error_max(gpu::ScalarType type) {
    return type == gpu::ScalarType::kF32 ? 2e-3 : type == gpu::ScalarType::kF16 ? 4e-3 : 2e-2;
}

class MergedWeightsTest : public ::testing::TestWithParam<const char*> {
  protected:
    void load(const char* name, ExecutorOptions options = {}) {
        options.n_rows_max = 32;
        options.n_sequences_max = 4;
        options.n_positions_max = 128;
        options.n_adapter_slots = kSlots;
        options.kernel_path = gpu::KernelPath::kPortableF32;
        executor_ = load_executor(goldens_dir() / "models" / name, options);
        const uint32_t ranks[kSlots] = {4, 16, 33, 8}, modules[kSlots] = {0x7f, 0x05, 0x78, 0x42};
        for (uint32_t slot = 0; slot < kSlots; ++slot) {
            adapters_.push_back(put_synthetic_lora(test_device(), executor_->lora_table(), executor_->config(), slot,
                                                   ranks[slot], modules[slot], 0.5f, 77 + slot));
        }
    }

    std::shared_ptr<const MergedWeights> merge(const std::vector<LoraUse>& uses) {
        auto merged = executor_->merge(uses);
        EXPECT_TRUE(merged.ok()) << (merged.ok() ? "" : merged.error().message);
        return merged.ok() ? *merged : nullptr;
    }
    std::vector<float> logits(const std::vector<LoraUse>& uses, bool merged) {
        Runner runner(*executor_);
        runner.set_merged(merged);
        auto logits = runner.logits(tokens_, false, RowAdapters{uses});
        EXPECT_TRUE(logits.ok()) << (logits.ok() ? "" : logits.error().message);
        return logits.ok() ? *logits : std::vector<float>();
    }
    static double error(const std::vector<float>& values, const std::vector<float>& reference) {
        return relative_error(values.data(), reference.data(), reference.size());
    }

    std::unique_ptr<Executor> executor_;
    std::vector<std::vector<gpu::Buffer>> adapters_;
    const std::vector<TokenId> tokens_ = {5, 17, 300, 42, 8, 9};
};

TEST_P(MergedWeightsTest, AnswerAsTheUnmergedAdapterAndLeaveTheBaseAlone) {
    load(GetParam());
    const double error_max = merged_error_max(executor_->weights().layers[0].qkv.type);
    const auto base = logits({}, false);
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
        const std::vector<LoraUse> uses = {{slot, 1.0f}};
        const auto unmerged = logits(uses, false);
        EXPECT_GT(error(unmerged, base), 0.05);
        executor_->use_merged(merge(uses));
        EXPECT_LE(error(logits(uses, true), unmerged), error_max) << "slot " << slot;
        EXPECT_EQ(logits({}, false), base);
        EXPECT_EQ(logits(uses, false), unmerged);
        const uint32_t other = (slot + 1) % kSlots;
        EXPECT_GT(error(logits({{other, 1.0f}}, false), unmerged), 0.05);
    }
    executor_->use_merged(nullptr);
    EXPECT_EQ(logits({}, false), base);
}

TEST_P(MergedWeightsTest, AnswerAsTheUnmergedMixOfScaledAdaptersWithGainsAndBiases) {
    load(GetParam());
    const double error_max = merged_error_max(executor_->weights().layers[0].qkv.type);
    // Slots 0 and 2 get gains and biases; modules differ between the slots.
    for (const uint32_t slot : {0u, 2u}) {
        adapters_.push_back(put_synthetic_lora(test_device(), executor_->lora_table(), executor_->config(), slot,
                                               5 + slot, slot == 0 ? 0x7f : 0x5a, 0.5f, 99 + slot, true));
    }
    const std::vector<std::vector<LoraUse>> mixes = {
        {{0, 1.0f}}, {{2, -0.5f}}, {{0, 0.4f}, {1, 0.7f}, {2, 0.3f}, {3, -0.2f}}};
    for (size_t i = 0; i < mixes.size(); ++i) {
        const auto unmerged = logits(mixes[i], false);
        EXPECT_GT(error(unmerged, logits({}, false)), 0.05);
        executor_->use_merged(merge(mixes[i]));
        EXPECT_LE(error(logits(mixes[i], true), unmerged), error_max) << "mix " << i;
    }
}

INSTANTIATE_TEST_SUITE_P(Models, MergedWeightsTest,
                         ::testing::Values("qwen2-tied", "phi3-sharded", "mistral-window", "llama-tied"),
                         [](const auto& param_info) {
                             std::string name = param_info.param;
                             std::ranges::replace(name, '-', '_');
                             return name;
                         });

class MergedWeightsOnce : public MergedWeightsTest {};

TEST_F(MergedWeightsOnce, PristineWeightsAreTheSameBitsAfterManyMerges) {
    load("qwen2-tied");
    const uint64_t before = checksum(test_device(), executor_->weights());
    const uint64_t allocated = test_device().allocated_bytes();
    const auto base = logits({}, false);
    constexpr uint32_t kSeed = 11;
    SCOPED_TRACE(kSeed);
    std::mt19937 random(kSeed);
    bool is_merged = false;
    for (uint64_t i = 0, n = number_from("LORAD_TEST_CYCLES", 150); i < n; ++i) {
        std::vector<LoraUse> uses;
        for (uint32_t slot = 0; slot < kSlots; ++slot) {
            if (random() % 2 == 0) uses.push_back({slot, static_cast<float>(random() % 400) / 100.0f - 2.0f});
        }
        is_merged = random() % 3 != 0;
        executor_->use_merged(is_merged ? merge(uses) : nullptr);
        if (i % 50 == 0 && is_merged) logits(uses, true);
    }
    executor_->use_merged(nullptr);
    EXPECT_EQ(checksum(test_device(), executor_->weights()), before);
    EXPECT_EQ(logits({}, false), base);
    EXPECT_EQ(test_device().allocated_bytes(), allocated);
}

TEST_F(MergedWeightsOnce, CopyNoMoreThanTheAdapterChanges) {
    load("qwen2-tied");
    const auto& layers = executor_->weights().layers;
    const auto& w = layers[0];
    const auto bytes = [](const Matrix& matrix) { return matrix.buffer.size(); };
    const auto attention = merge({{1, 1.0f}});  // q and v
    EXPECT_EQ(attention->device_bytes(), layers.size() * bytes(w.qkv));
    EXPECT_EQ(attention->address_of(w.o), w.o.buffer.address());
    EXPECT_NE(attention->address_of(w.qkv), w.qkv.buffer.address());
    EXPECT_EQ(attention->address_of(w.qkv_bias), w.qkv_bias.address());
    EXPECT_GT(attention->gpu_ms(), 0.0);
    EXPECT_EQ(merge({})->device_bytes(), 0u);
    EXPECT_EQ(merge({{0, 1.0f}, {1, 1.0f}})->device_bytes(),
              layers.size() * (bytes(w.qkv) + bytes(w.o) + bytes(w.gate_up) + bytes(w.down)));
}

TEST_F(MergedWeightsOnce, AreRefusedWithTheBytesWhereTheyDoNotFitAndNothingChanges) {
    load("qwen2-tied", {.merged_bytes = 100'000});
    const std::vector<LoraUse> uses = {{0, 1.0f}};
    const uint64_t allocated = test_device().allocated_bytes();
    const auto refused = executor_->merge(uses);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
    EXPECT_THAT(refused.error().message, HasSubstr("100000 are free"));
    EXPECT_EQ(test_device().allocated_bytes(), allocated);
    EXPECT_EQ(logits(uses, false).size(), executor_->config().vocab_size);
}

TEST_F(MergedWeightsOnce, StepsInFlightKeepTheWeightsTheyWereSubmittedWith) {
    load("qwen2-tied");
    const auto expected0 = [&] {
        executor_->use_merged(merge({{0, 1.0f}}));
        return logits({{0, 1.0f}}, true);
    }();
    const auto expected2 = [&] {
        executor_->use_merged(merge({{2, 1.0f}}));
        return logits({{2, 1.0f}}, true);
    }();
    const std::vector<BlockId> blocks = {0}, other_blocks = {1};
    StepBatch batch;
    batch.set_merged();
    batch.add_output(batch.add_rows(tokens_, 0, blocks, 2) + 5, true);
    ASSERT_TRUE(executor_->submit(batch).ok());
    executor_->use_merged(merge({{0, 1.0f}}));  // while it runs; nobody but the step keeps the old ones
    batch.clear();
    batch.set_merged();
    batch.add_output(batch.add_rows(tokens_, 0, other_blocks, 0) + 5, true);
    ASSERT_TRUE(executor_->submit(batch).ok());
    executor_->use_merged(nullptr);
    for (const auto* expected : {&expected2, &expected0}) {
        const auto output = executor_->finish();
        ASSERT_TRUE(output.ok());
        const auto got = output->logits(0);
        EXPECT_EQ(std::vector<float>(got.begin(), got.end()), *expected);
    }
}

// One row in one dispatch, and behind a longer context in one for each layer.
TEST_F(MergedWeightsOnce, RunInOneDispatchAsThePristineOnesDo) {
    const std::vector<LoraUse> uses = {{0, 1.0f}};
    const auto row_by_row = [&](gpu::PersistentDecode decode, uint32_t context_max, bool is_merged,
                                uint32_t& n_dispatches) {
        // A merged row has no adapter of its own: without the programs for such rows, which software compiles for long.
        load("qwen2-tied", {.one_dispatch_context_max = context_max,
                            .decode = decode,
                            .refused_kernels = {"decode_layers_lora", "decode_layers_lora_affinity"}});
        executor_->use_merged(merge(uses));
        std::vector<float> all;
        const BlockId block{0};
        for (uint32_t position = 0; position < tokens_.size(); ++position) {
            StepBatch batch;
            if (is_merged) batch.set_merged();
            batch.add_output(batch.add_rows({&tokens_[position], 1}, position, {&block, 1},
                                            RowAdapters{is_merged ? uses : std::vector<LoraUse>()}),
                             true);
            EXPECT_TRUE(executor_->submit(batch).ok());
            const auto output = executor_->finish();
            EXPECT_TRUE(output.ok());
            all.insert(all.end(), output->logits(0).begin(), output->logits(0).end());
            n_dispatches = output->n_dispatches;
        }
        return all;
    };
    uint32_t n_separate = 0, n_one = 0, n_apart = 0, n_pristine = 0;
    const auto want = row_by_row(gpu::PersistentDecode::kOff, kOneDispatchContextMax, true, n_separate);
    const auto one = row_by_row(gpu::PersistentDecode::kOn, kOneDispatchContextMax, true, n_one);
    const auto apart = row_by_row(gpu::PersistentDecode::kOn, 1, true, n_apart);
    const auto pristine = row_by_row(gpu::PersistentDecode::kOn, kOneDispatchContextMax, false, n_pristine);
    EXPECT_LE(error(one, want), merged_error_max(gpu::ScalarType::kF16));
    EXPECT_LE(error(apart, want), merged_error_max(gpu::ScalarType::kF16));
    EXPECT_GT(error(pristine, want), 0.1) << "the adapter does too little to test anything";
    EXPECT_LT(n_one, n_apart);
    EXPECT_LT(n_apart, n_separate);
}

TEST_F(MergedWeightsOnce, StepsThatAreComputedAgainKeepTheWeightsTheyWereSubmittedWith) {
    const auto generate = [&](uint64_t fault_step) {
        // Without the programs for rows with adapters, as above.
        load("qwen2-tied", {.decode = gpu::PersistentDecode::kOn,
                            .refused_kernels = {"decode_layers_lora", "decode_layers_lora_affinity"},
                            .decode_fault_step = fault_step});
        const auto merged = merge({{0, 1.0f}}), other = merge({{2, 1.0f}});
        const BlockId block{0};
        std::vector<float> all;
        for (uint32_t position = 0; position < tokens_.size(); ++position) {
            executor_->use_merged(merged);
            StepBatch batch;
            batch.set_merged();
            batch.add_output(batch.add_rows({&tokens_[position], 1}, position, {&block, 1}, 0), true);
            EXPECT_TRUE(executor_->submit(batch).ok());
            executor_->use_merged(other);  // while it runs
            const auto output = executor_->finish();
            EXPECT_TRUE(output.ok());
            all.insert(all.end(), output->logits(0).begin(), output->logits(0).end());
        }
        EXPECT_EQ(executor_->decodes_in_one_dispatch(), fault_step == 0);
        return all;
    };
    const auto want = generate(0);
    EXPECT_LE(error(generate(3), want), merged_error_max(gpu::ScalarType::kF16));
}

TEST_F(MergedWeightsOnce, AreMadeByOtherThreadsWhileStepsGoOn) {
    load("qwen2-tied");
    const auto base = logits({}, false), adapted = logits({{3, 1.0f}}, false);
    std::atomic<bool> stop{false};
    std::vector<std::thread> mergers;
    for (uint32_t slot = 0; slot < 2; ++slot) {
        mergers.emplace_back([&, slot] {
            while (!stop) EXPECT_TRUE(executor_->merge(std::vector<LoraUse>{{slot, 0.5f}}).ok());
        });
    }
    for (int i = 0; i < 40; ++i) {
        EXPECT_EQ(logits({}, false), base);
        EXPECT_EQ(logits({{3, 1.0f}}, false), adapted);
    }
    stop = true;
    for (std::thread& merger : mergers) merger.join();
}

}  // namespace
}  // namespace lorad::model::merged_weights_test
