// Adapters with an embedding, norms or an output layer of their own, through the executor's steps.

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "gpu/kernels/kernels.h"
#include "gpu/upload.h"
#include "model/exec/runner.h"
#include "tests/reference/numbers.h"
#include "tests/support/goldens.h"
#include "tests/support/load_executor.h"
#include "tests/support/read_back.h"
#include "tests/support/synthetic_lora.h"
#include "tests/support/test_device.h"

namespace lorad::model::extras_test {
namespace {

using namespace lorad::testing;
using reference::Type;

// What other kernels, other orders of sums and the f16 KV cache may cost.
constexpr double kErrorMax = 2e-3;

class ExtrasStep : public ::testing::Test {
  protected:
    void load(const char* name) {
        ExecutorOptions options{.n_rows_max = 32, .n_sequences_max = 8, .n_positions_max = 128, .n_adapter_slots = 4};
        options.kernel_path = gpu::KernelPath::kPortableF32;
        executor_ = load_executor(goldens_dir() / "models" / name, options);
        const Matrix& embedding = executor_->weights().embedding;
        embedding_type_ = static_cast<Type>(embedding.type);
        stride_ = embedding.k_stride;
        embedding_ = reference::decode(read_back(test_device(), embedding.buffer), embedding_type_);
        embedding_.resize(size_t{embedding.n} * stride_);
    }
    const ModelConfig& config() const { return executor_->config(); }

    gpu::DeviceAddress put(const std::vector<std::byte>& bytes) {
        auto buffer = test_device().create_buffer(bytes.size(), gpu::MemoryKind::kDeviceLocal, "extras");
        EXPECT_TRUE(buffer.ok() && test_device().uploader().upload(*buffer, 0, bytes).ok());
        buffers_.push_back(std::move(buffer).value());
        return buffers_.back().address();
    }
    gpu::DeviceAddress put(const std::vector<float>& values) {
        return put(reference::encode(values, values.size(), values.size(), Type::kF32));
    }
    std::vector<float> floats(const Vector& vector) {
        return reference::decode(read_back(test_device(), vector.buffer), Type::kF32);
    }

    AdapterView empty_view() const {
        return {.modules = std::vector<LoraModuleView>(config().n_layers * kLinearModules)};
    }
    void set(uint32_t slot, AdapterView view) {
        view.has_extras = true;
        ASSERT_TRUE(executor_->lora_table().set(slot, view).ok());
    }
    // Rows of the embedding in another order.
    std::vector<std::byte> permuted_rows(const std::vector<uint32_t>& order) const {
        std::vector<float> rows;
        for (const uint32_t from : order)
            rows.insert(rows.end(), &embedding_[size_t{from} * stride_], &embedding_[size_t{from} * stride_] + stride_);
        return reference::encode(rows, stride_, stride_, embedding_type_);
    }
    std::vector<uint32_t> random_order() {
        std::vector<uint32_t> order(config().vocab_size);
        for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
        std::ranges::shuffle(order, random_);
        return order;
    }
    std::vector<float> logits(const std::vector<TokenId>& tokens, uint32_t slot) {
        auto logits = Runner(*executor_).logits(tokens, false, slot);
        EXPECT_TRUE(logits.ok()) << (logits.ok() ? "" : logits.error().message);
        return logits.ok() ? *logits : std::vector<float>();
    }
    static double error(const std::vector<float>& values, const std::vector<float>& reference) {
        return relative_error(values.data(), reference.data(), reference.size());
    }

    std::unique_ptr<Executor> executor_;
    Type embedding_type_ = Type::kF32;
    uint32_t stride_ = 0;
    std::vector<float> embedding_;  // [vocab][stride_]
    std::vector<gpu::Buffer> buffers_;
    std::mt19937 random_{5};
    const std::vector<TokenId> tokens_ = {5, 17, 300, 42, 8, 9};
};

TEST_F(ExtrasStep, AnEmbeddingOfItsOwnReplacesTheBases) {
    load("llama-scaled");
    const auto order = random_order();
    AdapterView view = empty_view();
    view.extras.embed_table = put(permuted_rows(order));
    view.extras.embed_type = static_cast<uint32_t>(embedding_type_);
    set(1, view);
    std::vector<TokenId> renamed;
    for (const TokenId token : tokens_) renamed.push_back(static_cast<TokenId>(order[static_cast<size_t>(token)]));
    EXPECT_LE(error(logits(tokens_, 1), logits(renamed, kNoAdapterSlot)), kErrorMax);
    EXPECT_GT(error(logits(tokens_, 1), logits(tokens_, kNoAdapterSlot)), 0.05);
}

TEST_F(ExtrasStep, AnOutputLayerOfItsOwnReplacesTheBases) {
    for (const char* name : {"llama-scaled", "qwen2-tied"}) {
        SCOPED_TRACE(name);
        load(name);
        const Matrix& head = executor_->weights().output();
        const auto order = random_order();
        if (executor_->weights().lm_head.n != 0)
            embedding_ = reference::decode(read_back(test_device(), head.buffer), embedding_type_);
        AdapterView view = empty_view();
        view.extras.head_table = put(permuted_rows(order));
        view.extras.head_type = static_cast<uint32_t>(head.type);
        set(2, view);
        const auto base = logits(tokens_, kNoAdapterSlot);
        std::vector<float> expected;
        for (const uint32_t from : order) expected.push_back(base[from]);
        EXPECT_LE(error(logits(tokens_, 2), expected), kErrorMax);
    }
}

TEST_F(ExtrasStep, RowsOfTokensAreReplacedInTheEmbeddingAndIfTiedInTheOutputLayer) {
    load("qwen2-tied");
    const auto row = [&](uint32_t token) {
        return std::vector<float>(&embedding_[token * stride_], &embedding_[token * stride_] + stride_);
    };
    // 17 gets the row of 99, 300 that of 7.
    std::vector<float> rows = row(99);
    const std::vector<float> second = row(7);
    rows.insert(rows.end(), second.begin(), second.end());
    const uint32_t ids[] = {17, 300};
    const auto id_bytes = std::as_bytes(std::span(ids));
    AdapterView view = empty_view();
    view.extras.token_ids = put(std::vector<std::byte>(id_bytes.begin(), id_bytes.end()));
    view.extras.token_rows = put(rows);
    view.extras.n_tokens = 2;
    set(0, view);
    view.extras.tokens_in_head = true;
    set(1, view);
    std::vector<TokenId> renamed = tokens_;
    renamed[1] = 99;
    renamed[2] = 7;
    auto expected = logits(renamed, kNoAdapterSlot);
    EXPECT_LE(error(logits(tokens_, 0), expected), kErrorMax);
    expected[17] = expected[99];
    expected[300] = expected[7];
    EXPECT_LE(error(logits(tokens_, 1), expected), kErrorMax);
    EXPECT_GT(std::abs(expected[17] - logits(tokens_, 0)[17]), 0.01f);
}

TEST_F(ExtrasStep, EachNormIsReplacedByItsOwn) {
    load("qwen3");  // norms of q and k, too
    const ModelWeights& weights = executor_->weights();
    const auto scaled = [&](const Vector& norm, float by) {
        auto values = floats(norm);
        for (float& value : values) value *= by;
        return put(values);
    };
    const auto base = logits(tokens_, kNoAdapterSlot);
    // Copies of the base's change nothing, whatever the place.
    AdapterView copies = empty_view();
    for (const LayerWeights& w : weights.layers) {
        copies.extras.norms.push_back(
            {scaled(w.input_norm, 1), 0, scaled(w.ffn_norm, 1), 0, scaled(w.q_norm, 1), scaled(w.k_norm, 1)});
    }
    copies.extras.final_norm = scaled(weights.final_norm, 1);
    set(0, copies);
    EXPECT_LE(error(logits(tokens_, 0), base), kErrorMax);

    AdapterView doubled = empty_view();
    doubled.extras.final_norm = scaled(weights.final_norm, 2);
    set(1, doubled);
    auto twice = base;
    for (float& logit : twice) logit *= 2;
    EXPECT_LE(error(logits(tokens_, 1), twice), kErrorMax);

    // Any other one alone changes the answer; norms of q times 4 and of k divided by 4 cancel in the scores.
    using Layer = AdapterExtrasView::LayerNorms;
    for (gpu::DeviceAddress Layer::* norm : {&Layer::input, &Layer::ffn, &Layer::q, &Layer::k}) {
        AdapterView changed = empty_view();
        changed.extras.norms.resize(weights.layers.size());
        const bool is_wide = norm == &Layer::input || norm == &Layer::ffn;
        changed.extras.norms[1].*norm = scaled(is_wide ? weights.layers[1].input_norm : weights.layers[1].q_norm, 3);
        set(2, changed);
        EXPECT_GT(error(logits(tokens_, 2), base), 0.02);
    }
    AdapterView balanced = empty_view();
    for (const LayerWeights& w : weights.layers)
        balanced.extras.norms.push_back({0, 0, 0, 0, scaled(w.q_norm, 4), scaled(w.k_norm, 0.25f)});
    set(3, balanced);
    EXPECT_LE(error(logits(tokens_, 3), base), kErrorMax);
    // A slot that is set anew forgets its extras.
    ASSERT_TRUE(executor_->lora_table().set(2, empty_view()).ok());
    EXPECT_EQ(logits(tokens_, 2), base);
}

TEST_F(ExtrasStep, RowsWithAndWithoutExtrasShareAStep) {
    load("qwen2-tied");
    AdapterView view = empty_view();
    view.extras.embed_table = put(permuted_rows(random_order()));
    view.extras.embed_type = static_cast<uint32_t>(embedding_type_);
    set(1, view);
    const auto lora = put_synthetic_lora(test_device(), executor_->lora_table(), config(), 2, 8, 0x7f, 1.0f, 5);
    const std::vector<float> alone[] = {logits(tokens_, kNoAdapterSlot), logits(tokens_, 1), logits(tokens_, 2)};
    const uint32_t slots[] = {1, kNoAdapterSlot, 2, 1};
    StepBatch batch;
    for (uint32_t i = 0; i < 4; ++i) {
        const BlockId block = i;
        batch.add_output(batch.add_rows(tokens_, 0, {&block, 1}, slots[i]) + static_cast<uint32_t>(tokens_.size()) - 1,
                         true);
    }
    ASSERT_TRUE(executor_->submit(batch).ok());
    const auto output = executor_->finish();
    ASSERT_TRUE(output.ok());
    for (uint32_t i = 0; i < 4; ++i) {
        const auto& expected = alone[slots[i] == kNoAdapterSlot ? 0 : slots[i]];
        EXPECT_LE(relative_error(output->logits(i).data(), expected.data(), expected.size()), kErrorMax)
            << "sequence " << i;
    }
}

TEST_F(ExtrasStep, MergedLinearLayersKeepTheExtras) {
    load("qwen2-tied");
    const auto lora = put_synthetic_lora(test_device(), executor_->lora_table(), config(), 1, 8, 0x7f, 0.5f, 5);
    AdapterView view = executor_->lora_table().adapter(1);
    view.extras.embed_table = put(permuted_rows(random_order()));
    view.extras.embed_type = static_cast<uint32_t>(embedding_type_);
    const uint32_t hidden = config().hidden_size, rank = 8;
    std::uniform_real_distribution<float> uniform(-0.2f, 0.2f);
    std::vector<float> a(rank * stride_), b(config().vocab_size * rank);
    for (uint32_t r = 0; r < rank; ++r)
        std::generate_n(a.begin() + r * stride_, hidden, [&] { return uniform(random_); });
    std::ranges::generate(b, [&] { return uniform(random_); });
    view.extras.head_a = put(a);
    view.extras.head_b = put(b);
    view.extras.head_rank = rank;
    view.extras.head_scale = 1.0f;
    set(1, view);
    const auto unmerged = logits(tokens_, 1);
    const std::vector<LoraUse> uses = {{1, 1.0f}};
    auto merged = executor_->merge(uses);
    ASSERT_TRUE(merged.ok());
    executor_->use_merged(*merged);
    Runner runner(*executor_);
    runner.set_merged(true);
    const auto got = runner.logits(tokens_, false, 1);
    ASSERT_TRUE(got.ok());
    EXPECT_LE(error(*got, unmerged), 4e-3);  // the merged weights are rounded to f16
    EXPECT_GT(error(unmerged, logits(tokens_, kNoAdapterSlot)), 0.05);
}

}  // namespace
}  // namespace lorad::model::extras_test
