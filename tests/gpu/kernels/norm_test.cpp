#include "tests/gpu/kernels/kernel_fixture.h"

namespace lorad::gpu::testing::norm_test {
namespace {

struct NormCase {
    uint32_t hidden, n_rows, bucket;
    Type act;
    bool indirect;
};

class RmsNorm : public KernelTest, public ::testing::WithParamInterface<NormCase> {};

TEST_P(RmsNorm, MatchesTheReferenceAndKeepsToItsRows) {
    auto [hidden, n_rows, bucket, act, indirect] = GetParam();
    uint32_t stride = padded(hidden);
    auto x = reference::random_values(size_t{bucket} * hidden, Type::kF32, random_, 3.0f);
    auto gamma = reference::random_values(hidden, Type::kF32, random_);
    std::vector<LogitRow> logit_rows;
    for (uint32_t t = 0; t < bucket; t++) logit_rows.push_back({n_rows - 1 - std::min(t, n_rows - 1), kNoReadback});
    Buffer x_buffer = input(reference::encode(x, hidden, stride, Type::kF32));
    Buffer gamma_buffer = input(reference::encode(gamma, hidden, stride, Type::kF32));
    Buffer rows_buffer = input(logit_rows);
    Buffer count = input(std::vector<uint32_t>{n_rows});
    Buffer y = poisoned(uint64_t{bucket} * stride * 4);

    RmsNormParams params{count.address(),
                         x_buffer.address(),
                         gamma_buffer.address(),
                         y.address(),
                         0,
                         indirect ? rows_buffer.address() : 0,
                         0,
                         0,
                         0,
                         hidden,
                         stride,
                         stride,
                         1e-6f};
    execute([&](Recorder& recorder) { kernels_->rows.rms_norm(recorder, params, scalar(act), bucket); });

    auto got = content(y, size_t{bucket} * stride, act);
    for (uint32_t t = 0; t < bucket; t++) {
        const float* row = &got[size_t{t} * stride];
        if (t >= n_rows) {
            for (uint32_t i = 0; i < stride; i++) ASSERT_TRUE(is_poison(row[i])) << "row " << t << " was written";
            continue;
        }
        uint32_t from = indirect ? logit_rows[t].row : t;
        auto want = reference::rms_norm(reference::to_doubles({&x[size_t{from} * hidden], hidden}), gamma, 1e-6);
        expect_near(want, row, unit_roundoff(act) + 1e-6, 3.0, "row " + std::to_string(t));
        for (uint32_t i = hidden; i < stride; i++) ASSERT_EQ(row[i], 0.0f) << "padding of row " << t;
    }
    if (act == Type::kF32) return;
    auto rows = content<std::byte>(y, size_t{bucket} * stride * 2);
    rows.resize(size_t{round_up(bucket, kFragmentRowsMost)} * stride * 2, std::byte{0xff});
    for (const uint32_t order : kFragmentOrders) {
        Buffer blocks = poisoned(rows.size());
        params.y_fragments = blocks.address();
        execute([&](Recorder& recorder) { kernels_->rows.rms_norm(recorder, params, scalar(act), bucket, order); });
        EXPECT_EQ(content<std::byte>(blocks, rows.size()), in_fragments(rows, stride, order)) << "order " << order;
    }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, RmsNorm,
    ::testing::Values(NormCase{96, 1, 1, Type::kF32, false}, NormCase{112, 3, 4, Type::kF16, false},
                      NormCase{250, 5, 8, Type::kBf16, false}, NormCase{192, 2, 6, Type::kF32, true},
                      NormCase{2050, 3, 3, Type::kF32, true}, NormCase{4096, 1, 2, Type::kF16, false},
                      NormCase{96, 130, 192, Type::kF16, false}));

struct AddNormCase {
    uint32_t hidden, n_rows, bucket, n_splits;
    Type act;
    bool with_bias, with_norm, with_lora;
    uint32_t whole_rows = 0;
};

class AddNorm : public KernelTest, public ::testing::WithParamInterface<AddNormCase> {};

TEST_P(AddNorm, AddsSplitsBiasAndAdaptersAndNormalises) {
    auto c = GetParam();
    uint32_t stride = padded(c.hidden);
    constexpr uint32_t kLayers = 2, kLayer = 1, kSlots = 4;
    std::vector<TestModule> modules;  // by slot; slot 2 does not touch the module
    size_t ranks[kSlots] = {16, 3, 0, 64};
    for (uint32_t s = 0; s < kSlots; s++) {
        modules.push_back(TestModule::make(c.hidden, 8, ranks[s], reference::kTypes[s % 3], 0.5 + s, random_));
    }
    std::vector<LoraModule> table(kSlots * kLayers * kLoraModules);
    for (uint32_t s = 0; s < kSlots; s++) table[(s * kLayers + kLayer) * kLoraModules + kLoraO] = modules[s].entry();
    Buffer table_buffer = input(table);

    std::vector<StepRow> rows(c.bucket);
    for (uint32_t t = 0; t < c.bucket; t++) rows[t].adapter_slot = t % 7 == 6 ? kNoSlot : (t / 2) % kSlots;
    auto low = reference::random_values(size_t{c.bucket} * kMaxRank, Type::kF32, random_);
    for (uint32_t t = 0; t < c.bucket; t++) {  // what lies behind the rank rounded up must not matter
        size_t rank = rows[t].adapter_slot == kNoSlot ? 0 : ranks[rows[t].adapter_slot];
        for (size_t r = rank; r < kMaxRank; r++) low[t * kMaxRank + r] = r < (rank + 7) / 8 * 8 ? 0.0f : NAN;
    }
    uint32_t capacity = c.bucket + kSlackRows;
    auto y = reference::random_values(size_t{c.n_splits} * capacity * c.hidden, Type::kF32, random_);
    poison_other_splits(y, c.n_splits, c.whole_rows, capacity, c.hidden);
    auto x = reference::random_values(size_t{capacity} * c.hidden, Type::kF32, random_);
    auto bias = reference::random_values(c.hidden, Type::kF32, random_);
    auto gamma = reference::random_values(c.hidden, Type::kF32, random_);

    Buffer step = step_state(rows, c.n_rows);
    Buffer y_buffer = input(reference::encode(y, c.hidden, stride, Type::kF32));
    Buffer low_buffer = input(low);
    Buffer bias_buffer = input(reference::encode(bias, c.hidden, stride, Type::kF32));
    Buffer gamma_buffer = input(reference::encode(gamma, c.hidden, stride, Type::kF32));
    auto x_bytes = reference::encode(x, c.hidden, stride, Type::kF32);
    Buffer x_buffer = poisoned(x_bytes.size());
    std::memcpy(x_buffer.mapped().data(), x_bytes.data(), x_bytes.size());
    Buffer xn = poisoned(uint64_t{capacity} * stride * 4);

    AddNormParams params{};
    params.step = step.address();
    params.y = y_buffer.address();
    params.bias = c.with_bias ? bias_buffer.address() : 0;
    params.low = low_buffer.address();
    params.lora_layer = table_buffer.address() + kLayer * kLoraModules * sizeof(LoraModule);
    params.x = x_buffer.address();
    params.gamma = c.with_norm ? gamma_buffer.address() : 0;
    params.xn = xn.address();
    params.lora_slot_stride = kLayers * kLoraModules;
    params.lora_module = kLoraO;
    params.hidden = c.hidden;
    params.y_stride = params.x_stride = params.xn_stride = stride;
    params.split_stride = capacity * stride;
    params.eps = 1e-5f;
    execute([&](Recorder& recorder) {
        kernels_->rows.add_norm(recorder, params, {c.bucket, c.n_splits, level(c.with_lora), false, c.whole_rows},
                                scalar(c.act));
    });

    auto got_x = content<float>(x_buffer, size_t{capacity} * stride);
    auto got_xn = content(xn, size_t{capacity} * stride, c.act);
    for (uint32_t t = 0; t < capacity; t++) {
        std::string what = "row " + std::to_string(t);
        Vector want(&x[size_t{t} * c.hidden], &x[size_t{t} * c.hidden] + c.hidden);
        if (t < c.n_rows) {
            for (uint32_t s = 0; s < (t < c.whole_rows ? 1 : c.n_splits); s++) {
                for (uint32_t i = 0; i < c.hidden; i++) want[i] += y[(size_t{s} * capacity + t) * c.hidden + i];
            }
            for (uint32_t i = 0; c.with_bias && i < c.hidden; i++) want[i] += bias[i];
            uint32_t slot = rows[t].adapter_slot;
            if (c.with_lora && slot != kNoSlot) {
                add_expand(want, modules[slot].pair, reference::to_doubles({&low[size_t{t} * kMaxRank], kMaxRank}));
            }
        }
        expect_near(want, &got_x[size_t{t} * stride], sum_tolerance(64), 40.0, what);
        const float* row = &got_xn[size_t{t} * stride];
        if (t >= c.n_rows || !c.with_norm) {
            ASSERT_TRUE(is_poison(row[0]) && is_poison(row[stride - 1])) << what << " was written";
            continue;
        }
        expect_near(reference::rms_norm(want, gamma, 1e-5), row, unit_roundoff(c.act) + 4e-6, 4.0,
                    "normalised " + what);
        for (uint32_t i = c.hidden; i < stride; i++) ASSERT_EQ(row[i], 0.0f) << "padding of " << what;
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AddNorm,
                         ::testing::Values(AddNormCase{96, 1, 1, 1, Type::kF32, false, true, false},
                                           AddNormCase{112, 5, 8, 3, Type::kF16, true, true, true},
                                           AddNormCase{250, 13, 16, 2, Type::kBf16, false, true, true},
                                           AddNormCase{192, 40, 48, 1, Type::kF32, true, true, true},
                                           AddNormCase{192, 3, 4, 1, Type::kF32, false, false, true},
                                           AddNormCase{2050, 2, 2, 2, Type::kF32, false, true, false},
                                           AddNormCase{192, 3, 4, 2, Type::kF32, false, true, false},
                                           AddNormCase{112, 5, 8, 3, Type::kF16, true, false, false},
                                           AddNormCase{96, 130, 192, 2, Type::kF16, true, true, false},
                                           AddNormCase{250, 90, 96, 3, Type::kF16, true, true, true, 64},
                                           AddNormCase{96, 60, 96, 2, Type::kF32, false, true, false, 64}));

TEST_F(KernelTest, AddNormGivesARowTheSameBitsAloneAndAmongOthers) {
    constexpr uint32_t kHidden = 96, kStride = 128, kRows = 20, kCapacity = kRows + kSlackRows;
    TestModule module = TestModule::make(kHidden, 8, 19, Type::kBf16, 1.5, random_);
    std::vector<LoraModule> table(kLoraModules);
    table[kLoraDown] = module.entry();
    Buffer table_buffer = input(table);
    auto y = reference::random_values(size_t{kCapacity} * kHidden, Type::kF32, random_);
    auto x = reference::random_values(size_t{kCapacity} * kHidden, Type::kF32, random_);
    auto low = reference::random_values(size_t{kRows} * kMaxRank, Type::kF32, random_);
    auto gamma = reference::random_values(kHidden, Type::kF32, random_);
    Buffer gamma_buffer = input(reference::encode(gamma, kHidden, kStride, Type::kF32));
    Buffer y_buffer = input(reference::encode(y, kHidden, kStride, Type::kF32));
    Buffer low_buffer = input(low);
    auto normalised = [&](uint32_t first, uint32_t n) {
        Buffer step = step_state(std::vector<StepRow>(n), n);
        Buffer x_buffer = input(reference::encode(x, kHidden, kStride, Type::kF32));
        Buffer xn = poisoned(uint64_t{n} * kStride * 4);
        AddNormParams params{};
        params.step = step.address();
        params.y = y_buffer.address() + first * kStride * 4;
        params.low = low_buffer.address() + first * kMaxRank * 4;
        params.lora_layer = table_buffer.address();
        params.x = x_buffer.address() + first * kStride * 4;
        params.gamma = gamma_buffer.address();
        params.xn = xn.address();
        params.lora_slot_stride = kLoraModules;
        params.lora_module = kLoraDown;
        params.hidden = kHidden;
        params.y_stride = params.x_stride = params.xn_stride = kStride;
        params.eps = 1e-5f;
        execute([&](Recorder& recorder) {
            kernels_->rows.add_norm(recorder, params, {n, 1, LoraLevel::kPlain}, ScalarType::kF32);
        });
        return content<uint32_t>(xn, n * kStride);
    };
    auto together = normalised(0, kRows);
    for (uint32_t t : {0u, 5u, 19u}) {
        auto alone = normalised(t, 1);
        EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + t * kStride)) << "row " << t;
    }
}

TEST_F(KernelTest, ArrangeFragmentsMovesEachElementToItsPlace) {
    constexpr uint32_t kRows = 37, kBucket = 64, kStride = 256;
    std::vector<std::byte> rows(size_t{kBucket} * kStride * 2);
    for (size_t i = 0; i < rows.size(); i++) rows[i] = static_cast<std::byte>(random_());
    const Buffer from = input(rows), count = input(std::vector<uint32_t>{kRows});
    for (const uint32_t order : {kFragmentsByColumns, kFragmentsByRows, kMatrixFragments}) {
        const Buffer to = poisoned(rows.size());
        execute([&](Recorder& recorder) {
            kernels_->products.arrange_fragments(recorder, {count.address(), from.address(), to.address(), kStride, 0},
                                                 kBucket, order);
        });
        // nothing where there is no row
        std::vector<std::byte> written = rows;
        std::fill(written.begin() + size_t{round_up(kRows, 16)} * kStride * 2, written.end(), std::byte{0xff});
        const auto want = in_fragments(written, kStride, order);
        EXPECT_EQ(content<std::byte>(to, rows.size()), want) << "order " << order;
    }
}

// Rows and blocks have the same bits, and neither has anything where there is no row; rows may be left out.
TEST_F(KernelTest, AddNormWritesFragmentsToo) {
    constexpr uint32_t kRows = 37, kBucket = 48, kCapacity = kBucket + kSlackRows;
    for (const auto& [type, order] :
         {std::pair(Type::kF16, kFragmentsByColumns), std::pair(Type::kF16, kFragmentsByRows),
          std::pair(Type::kF16, kRowFragments), std::pair(Type::kBf16, kFragmentsByColumns),
          std::pair(Type::kBf16, kFragmentsByRows), std::pair(Type::kBf16, kRowFragments)}) {
        for (const uint32_t hidden : {112u, 250u, 2050u}) {
            const uint32_t stride = padded(hidden);
            Buffer step = step_state(std::vector<StepRow>(kBucket), kRows);
            Buffer y = input(reference::encode(
                reference::random_values(size_t{kCapacity} * hidden, Type::kF32, random_), hidden, stride, Type::kF32));
            Buffer gamma = input(
                reference::encode(reference::random_values(hidden, Type::kF32, random_), hidden, stride, Type::kF32));
            const auto x_bytes = reference::encode(
                reference::random_values(size_t{kCapacity} * hidden, Type::kF32, random_), hidden, stride, Type::kF32);
            const size_t n_bytes = size_t{kBucket} * stride * 2;
            Buffer rows = poisoned(n_bytes), blocks = poisoned(n_bytes), fragments_alone = poisoned(n_bytes);
            AddNormParams params{};
            params.step = step.address();
            params.y = y.address();
            params.gamma = gamma.address();
            params.hidden = hidden;
            params.y_stride = params.x_stride = params.xn_stride = stride;
            params.eps = 1e-5f;
            for (const bool alone : {false, true}) {
                Buffer x = input(x_bytes);
                params.x = x.address();
                params.xn = alone ? 0 : rows.address();
                params.xn_fragments = (alone ? fragments_alone : blocks).address();
                execute([&](Recorder& recorder) {
                    kernels_->rows.add_norm(recorder, params, {.rows = kBucket}, scalar(type), order);
                });
            }
            const auto want = content<std::byte>(rows, n_bytes);
            ASSERT_TRUE(content(rows, n_bytes / 2, type)[0] != 0 && !is_poison(content(rows, n_bytes / 2, type)[0]));
            EXPECT_EQ(content<std::byte>(blocks, n_bytes), in_fragments(want, stride, order)) << "hidden " << hidden;
            EXPECT_EQ(content<std::byte>(fragments_alone, n_bytes), in_fragments(want, stride, order))
                << "hidden " << hidden;
        }
    }
}

}  // namespace
}  // namespace lorad::gpu::testing::norm_test
