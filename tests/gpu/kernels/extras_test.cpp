// Adapters that change the embedding, the norms and the output layer, in batches with rows that do not.
#include <set>

#include "tests/gpu/kernels/kernel_fixture.h"

namespace lorad::gpu::testing::extras_test {
namespace {

std::vector<std::byte> encoded(const std::vector<float>& values, uint32_t n_columns, uint32_t stride, Type type) {
    return reference::encode(values, n_columns, stride, type);
}

// An adapter's extras on the host and on the device; what is left empty it does not have.
struct TestExtras {
    std::vector<float> embed_table, embed_a, embed_b;  // A [vocab][rank]: transposed
    std::vector<uint32_t> token_ids;
    std::vector<float> token_rows;
    std::vector<float> head_table, head_a, head_b, head_bias;
    uint32_t embed_rank = 0, head_rank = 0;
    double embed_scale = 0, head_scale = 0;
    bool tokens_in_head = false;
    SlotExtras entry{};
    std::vector<Buffer> buffers;

    uint64_t put(const std::vector<std::byte>& bytes) {
        buffers.push_back(input(bytes));
        return buffers.back().address();
    }
};

struct Use {
    uint32_t slot;
    float scale;
};

class Extras : public KernelTest {
  protected:
    static constexpr uint32_t kSlots = 6;

    // Slots: 0 low-rank embedding and output layer, 1 tables of its own, 2 tokens of embedding and output layer, 3
    // tokens of the embedding alone, 4 nothing, 5 low rank of another type and a bias.
    void make_slots(uint32_t vocab, uint32_t hidden) {
        vocab_ = vocab;
        hidden_ = hidden;
        const uint32_t stride = padded(hidden);
        slots_.resize(kSlots);
        const auto low_rank = [&](TestExtras& to, uint32_t embed_rank, uint32_t head_rank, Type type) {
            to.embed_rank = embed_rank;
            to.embed_scale = 0.75f;
            to.embed_a = reference::random_values(size_t{vocab} * embed_rank, type, random_);
            to.embed_b = reference::random_values(size_t{hidden} * embed_rank, type, random_);
            to.head_rank = head_rank;
            to.head_scale = 0.25f;
            to.head_a = reference::random_values(size_t{head_rank} * hidden, type, random_);
            to.head_b = reference::random_values(size_t{vocab} * head_rank, type, random_);
            to.entry.embed_a = to.put(encoded(to.embed_a, embed_rank, round_up(embed_rank, 8), type));
            to.entry.embed_b = to.put(encoded(to.embed_b, embed_rank, round_up(embed_rank, 8), type));
            to.entry.embed_rank = embed_rank;
            to.entry.embed_lora_type = static_cast<uint32_t>(type);
            to.entry.embed_scale = 0.75f;
            to.entry.head_a = to.put(encoded(to.head_a, hidden, stride, type));
            to.entry.head_b = to.put(encoded(to.head_b, head_rank, round_up(head_rank, 8), type));
            to.entry.head_rank = head_rank;
            to.entry.head_lora_type = static_cast<uint32_t>(type);
            to.entry.head_scale = 0.25f;
        };
        low_rank(slots_[0], 5, 12, Type::kF32);
        low_rank(slots_[5], 16, 33, Type::kBf16);
        TestExtras& biased = slots_[5];
        biased.head_bias = reference::random_values(vocab, Type::kF32, random_, 2.0f);
        biased.entry.head_bias = biased.put(encoded(biased.head_bias, vocab, vocab, Type::kF32));

        TestExtras& tables = slots_[1];
        tables.embed_table = reference::random_values(size_t{vocab} * hidden, Type::kF16, random_);
        tables.head_table = reference::random_values(size_t{vocab} * hidden, Type::kBf16, random_);
        tables.entry.embed_table = tables.put(encoded(tables.embed_table, hidden, stride, Type::kF16));
        tables.entry.embed_type = static_cast<uint32_t>(Type::kF16);
        tables.entry.head_table = tables.put(encoded(tables.head_table, hidden, stride, Type::kBf16));
        tables.entry.head_type = static_cast<uint32_t>(Type::kBf16);

        for (const uint32_t slot : {2u, 3u}) {
            TestExtras& tokens = slots_[slot];
            std::set<uint32_t> ids = {0, vocab - 1};
            while (ids.size() < 13) ids.insert(static_cast<uint32_t>(random_() % vocab));
            tokens.token_ids.assign(ids.begin(), ids.end());
            tokens.token_rows = reference::random_values(ids.size() * hidden, Type::kF32, random_);
            tokens.tokens_in_head = slot == 2;
            tokens.buffers.push_back(input(tokens.token_ids));
            tokens.entry.token_ids = tokens.buffers.back().address();
            tokens.entry.token_rows = tokens.put(encoded(tokens.token_rows, hidden, stride, Type::kF32));
            tokens.entry.n_tokens = static_cast<uint32_t>(ids.size());
            tokens.entry.tokens_in_head = slot == 2;
        }
        std::vector<SlotExtras> entries;
        for (const TestExtras& slot : slots_) entries.push_back(slot.entry);
        extras_ = input(entries);
    }

    // Rows of every slot alone, of the base, and of mixes of those that may be mixed.
    void make_rows(uint32_t n_rows) {
        const std::vector<std::vector<Use>> lists = {
            {},          {{0, 1.0f}},  {{1, 1.0f}}, {{1, 1.0f}},
            {{2, 1.0f}}, {{3, 1.0f}},  {{4, 1.0f}}, {{0, -0.5f}, {4, 2.0f}, {5, 1.5f}},
            {{2, 1.0f}}, {{5, 0.25f}},
        };
        std::vector<StepUse> uses(3);  // lists need not begin at 0
        for (uint32_t t = 0; t < n_rows; t++) {
            const std::vector<Use>& list = lists[t % lists.size()];
            StepRow row{};
            row.token = static_cast<int32_t>(random_() % vocab_);
            row.adapter_slot = list.empty() ? kNoSlot : list[0].slot;
            row.extras_slot = list.size() == 1 && list[0].slot != 4 ? list[0].slot : kNoSlot;
            row.use_begin = static_cast<uint32_t>(uses.size());
            row.n_uses = static_cast<uint32_t>(list.size());
            for (const Use& use : list) uses.push_back({use.slot, use.scale, 0xffffffffu, 0});
            rows_.push_back(row);
            row_uses_.push_back(list);
        }
        uses_ = input(uses);
    }

    uint32_t vocab_ = 0, hidden_ = 0;
    std::vector<TestExtras> slots_;
    Buffer extras_, uses_;
    std::vector<StepRow> rows_;
    std::vector<std::vector<Use>> row_uses_;
};

struct EmbedCase {
    uint32_t vocab, hidden;
    Type type;
};

class EmbedExtras : public Extras, public ::testing::WithParamInterface<EmbedCase> {};

TEST_P(EmbedExtras, GivesEachRowTheEmbeddingOfItsAdapters) {
    const EmbedCase c = GetParam();
    make_slots(c.vocab, c.hidden);
    make_rows(33);
    const uint32_t stride = padded(c.hidden), n_rows = 31;
    // Tokens that slots 2 and 3 have and do not have, one that a step before chose, one outside the vocabulary.
    for (uint32_t t = 0; t < rows_.size(); t++) {
        const uint32_t slot = rows_[t].extras_slot;
        if ((slot == 2 || slot == 3) && t % 20 < 10)
            rows_[t].token = static_cast<int32_t>(slots_[slot].token_ids[t % 13]);
    }
    const std::vector<int32_t> sampled = {5, 7, static_cast<int32_t>(c.vocab - 1)};
    rows_[4].token = ~2;
    rows_[5].token = static_cast<int32_t>(c.vocab + 3);
    const auto table = reference::random_values(size_t{c.vocab} * c.hidden, c.type, random_);
    const Buffer table_buffer = input(encoded(table, c.hidden, stride, c.type)), sampled_buffer = input(sampled);
    const Buffer step = step_state(rows_, n_rows);
    const Buffer x = poisoned(rows_.size() * stride * 4);
    constexpr float kScale = 1.5f;
    execute([&](Recorder& recorder) {
        kernels_->lora.embed_extras(
            recorder,
            {step.address(), uses_.address(), extras_.address(), table_buffer.address(), sampled_buffer.address(),
             x.address(), c.hidden, stride, stride, c.vocab, kScale, 0},
            scalar(c.type), static_cast<uint32_t>(rows_.size()));
    });
    const auto got = content<float>(x, rows_.size() * stride);
    for (uint32_t t = 0; t < rows_.size(); t++) {
        if (t >= n_rows) {
            EXPECT_TRUE(is_poison(got[size_t{t} * stride])) << "row " << t;
            continue;
        }
        uint32_t token = rows_[t].token < 0 ? static_cast<uint32_t>(sampled[static_cast<size_t>(~rows_[t].token)])
                                            : static_cast<uint32_t>(rows_[t].token);
        if (token >= c.vocab) token = 0;
        const float* from = &table[size_t{token} * c.hidden];
        if (rows_[t].extras_slot != kNoSlot) {
            const TestExtras& own = slots_[rows_[t].extras_slot];
            const auto place = std::find(own.token_ids.begin(), own.token_ids.end(), token);
            if (place != own.token_ids.end()) {
                from = &own.token_rows[static_cast<size_t>(place - own.token_ids.begin()) * c.hidden];
            } else if (!own.embed_table.empty()) {
                from = &own.embed_table[size_t{token} * c.hidden];
            }
        }
        Vector want = reference::to_doubles({from, c.hidden});
        for (const Use& use : row_uses_[t]) {
            const TestExtras& own = slots_[use.slot];
            if (own.embed_rank == 0) continue;
            const auto low = reference::to_doubles({&own.embed_a[size_t{token} * own.embed_rank], own.embed_rank});
            reference::add_expand(want, {{}, own.embed_b, own.embed_rank, use.scale * own.embed_scale}, low);
        }
        for (double& value : want) value *= kScale;
        expect_near(want, &got[size_t{t} * stride], sum_tolerance(40), 6.0, "row " + std::to_string(t));
        for (uint32_t h = c.hidden; h < round_up(c.hidden, 4); h++) EXPECT_EQ(got[size_t{t} * stride + h], 0.0f);
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, EmbedExtras,
                         ::testing::Values(EmbedCase{200, 96, Type::kF32}, EmbedCase{1023, 250, Type::kBf16},
                                           EmbedCase{64, 128, Type::kF16}));

struct HeadCase {
    uint32_t vocab, hidden;
    Type act;
    uint32_t n_logit_rows;
};

class HeadExtras : public Extras, public ::testing::WithParamInterface<HeadCase> {};

TEST_P(HeadExtras, GiveEachLogitRowTheOutputLayerOfItsAdapters) {
    const HeadCase c = GetParam();
    make_slots(c.vocab, c.hidden);
    make_rows(40);
    const uint32_t stride = padded(c.hidden), logits_stride = padded(c.vocab), bucket = c.n_logit_rows + 3;
    std::vector<LogitRow> logit_rows;
    for (uint32_t i = 0; i < bucket; i++) logit_rows.push_back({(i * 7 + i / 10) % 40, kNoReadback});
    const auto x = reference::random_values(size_t{bucket + kSlackRows} * c.hidden, c.act, random_);
    const auto base = reference::random_values(size_t{bucket} * logits_stride, Type::kF32, random_, 5.0f);
    const Buffer step = make_buffer(sizeof(StepHeader) + rows_.size() * sizeof(StepRow), MemoryKind::kHostUpload);
    StepHeader header{};
    header.n_rows = 40;
    header.n_logit_rows = c.n_logit_rows;
    std::memcpy(step.mapped().data(), &header, sizeof(header));
    std::memcpy(step.mapped().data() + sizeof(header), rows_.data(), rows_.size() * sizeof(StepRow));
    const Buffer rows_buffer = input(logit_rows), x_buffer = input(encoded(x, c.hidden, stride, c.act));
    Buffer logits = poisoned(base.size() * 4);
    std::memcpy(logits.mapped().data(), base.data(), base.size() * 4);
    const Buffer low = poisoned(LoraPlanner::head_low_bytes(bucket));
    execute([&](Recorder& recorder) {
        kernels_->lora.head_extras(
            recorder,
            {step.address(), rows_buffer.address(), uses_.address(), extras_.address(), x_buffer.address(),
             logits.address(), low.address(), c.hidden, stride, logits_stride, c.vocab},
            scalar(c.act), bucket);
    });
    const auto got = content<float>(logits, base.size());
    for (uint32_t i = 0; i < bucket; i++) {
        const float* row_base = &base[size_t{i} * logits_stride];
        const std::string what = "logit row " + std::to_string(i);
        Vector want = reference::to_doubles({row_base, c.vocab});
        const StepRow& row = rows_[logit_rows[i].row];
        const Vector xi = reference::to_doubles({&x[size_t{i} * c.hidden], c.hidden});
        bool changes = false;
        if (i < c.n_logit_rows) {
            if (row.extras_slot != kNoSlot) {
                const TestExtras& own = slots_[row.extras_slot];
                if (!own.head_table.empty()) want = reference::multiply(own.head_table, xi);
                if (own.tokens_in_head) {
                    const Vector products = reference::multiply(own.token_rows, xi);
                    for (size_t n = 0; n < products.size(); n++) want[own.token_ids[n]] = products[n];
                }
                changes = !own.head_table.empty() || own.tokens_in_head;
            }
            for (const Use& use : row_uses_[logit_rows[i].row]) {
                const TestExtras& own = slots_[use.slot];
                if (own.head_rank != 0) {
                    const Vector products = reference::multiply(own.head_a, xi);
                    reference::add_expand(want, {{}, own.head_b, own.head_rank, use.scale * own.head_scale}, products);
                    changes = true;
                }
                for (size_t n = 0; n < own.head_bias.size(); n++) want[n] += double{use.scale} * own.head_bias[n];
            }
        }
        if (!changes) {
            for (uint32_t n = 0; n < c.vocab; n++)
                ASSERT_EQ(got[size_t{i} * logits_stride + n], row_base[n]) << what << " was changed";
            continue;
        }
        // Products of two values in -1..1 over the hidden width, then over the rank.
        expect_near(want, &got[size_t{i} * logits_stride], sum_tolerance(c.hidden + 33), 10 + std::sqrt(c.hidden) * 4,
                    what);
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, HeadExtras,
                         ::testing::Values(HeadCase{200, 96, Type::kF32, 20}, HeadCase{1023, 250, Type::kBf16, 9},
                                           HeadCase{130, 128, Type::kF16, 1}, HeadCase{64, 64, Type::kF32, 40}));

// Norms: which gamma a row gets.
class SlotNorms : public KernelTest {
  protected:
    static constexpr uint32_t kHidden = 100, kStride = 128, kRows = 7, kSlots = 3;

    void SetUp() override {
        KernelTest::SetUp();
        for (uint32_t t = 0; t < kRows; t++) {
            StepRow row{};
            row.adapter_slot = row.extras_slot = t % 4 == 3 ? kNoSlot : t % 4;  // slot 1 has no norm of its own
            rows_.push_back(row);
        }
        for (uint32_t i = 0; i < kSlots + 1; i++)
            gammas_.push_back(reference::random_values(kStride, Type::kF32, random_));
        for (const auto& gamma : gammas_) buffers_.push_back(input(gamma));
        addresses_ = input(std::vector<uint64_t>{buffers_[0].address(), 0, buffers_[2].address()});
        x_ = reference::random_values(kRows * kHidden, Type::kF32, random_, 3.0f);
    }
    // The base's gamma is number kSlots.
    std::span<const float> gamma_of(uint32_t t) const {
        const uint32_t slot = rows_[t].extras_slot;
        return std::span(gammas_[slot == kNoSlot || slot == 1 ? kSlots : slot]).first(kHidden);
    }

    std::vector<StepRow> rows_;
    std::vector<std::vector<float>> gammas_;
    std::vector<Buffer> buffers_;
    Buffer addresses_;
    std::vector<float> x_;
};

TEST_F(SlotNorms, RmsNormTakesTheAdaptersWeights) {
    const Buffer step = step_state(rows_, kRows), x = input(reference::encode(x_, kHidden, kStride, Type::kF32));
    std::vector<LogitRow> logit_rows;
    for (uint32_t i = 0; i < kRows; i++) logit_rows.push_back({kRows - 1 - i, kNoReadback});
    const Buffer rows_buffer = input(logit_rows);
    for (const bool indirect : {false, true}) {
        const Buffer y = poisoned(kRows * kStride * 4);
        execute([&](Recorder& recorder) {
            kernels_->rows.rms_norm(recorder,
                                    {step.address(), x.address(), buffers_[kSlots].address(), y.address(), 0,
                                     indirect ? rows_buffer.address() : 0, step.address(), addresses_.address(), 0,
                                     kHidden, kStride, kStride, 1e-6f},
                                    ScalarType::kF32, kRows);
        });
        const auto got = content<float>(y, kRows * kStride);
        for (uint32_t t = 0; t < kRows; t++) {
            const uint32_t from = indirect ? kRows - 1 - t : t;
            const auto want =
                reference::rms_norm(reference::to_doubles({&x_[from * kHidden], kHidden}), gamma_of(from), 1e-6);
            expect_near(want, &got[t * kStride], 1e-6, 3.0, "row " + std::to_string(t));
        }
    }
}

TEST_F(SlotNorms, AddNormTakesTheAdaptersWeights) {
    const Buffer step = step_state(rows_, kRows);
    const Buffer x = input(reference::encode(x_, kHidden, kStride, Type::kF32));
    const auto y = reference::random_values(kRows * kHidden, Type::kF32, random_);
    const Buffer y_buffer = input(reference::encode(y, kHidden, kStride, Type::kF32)),
                 xn = poisoned(kRows * kStride * 4);
    AddNormParams params{};
    params.step = step.address();
    params.y = y_buffer.address();
    params.x = x.address();
    params.gamma = buffers_[kSlots].address();
    params.slot_norms = addresses_.address();
    params.xn = xn.address();
    params.hidden = kHidden;
    params.y_stride = params.x_stride = params.xn_stride = kStride;
    params.eps = 1e-6f;
    execute([&](Recorder& recorder) { kernels_->rows.add_norm(recorder, params, {.rows = kRows}, ScalarType::kF32); });
    const auto got = content<float>(xn, kRows * kStride);
    for (uint32_t t = 0; t < kRows; t++) {
        Vector sum = reference::to_doubles({&x_[t * kHidden], kHidden});
        for (uint32_t i = 0; i < kHidden; i++) sum[i] += y[t * kHidden + i];
        expect_near(reference::rms_norm(sum, gamma_of(t), 1e-6), &got[t * kStride], 1e-6, 3.0,
                    "row " + std::to_string(t));
    }
}

}  // namespace
}  // namespace lorad::gpu::testing::extras_test
