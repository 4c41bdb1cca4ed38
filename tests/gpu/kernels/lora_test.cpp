#include "tests/gpu/kernels/kernel_fixture.h"

namespace lorad::gpu::testing::lora_test {
namespace {

// Of one group, adapters in slots 0, 1, ... of a table with a second layer: that one is theirs, the first must not be
// touched.
class LoraGroupTest : public KernelTest {
  protected:
    // Segments of several adapters, between them rows without one.
    struct SegmentRows {
        std::vector<LoraSegment> segments;
        std::vector<uint32_t> row_slot;
    };
    // 1, 1 + growth, 1 + 2 growth, ... rows.
    static SegmentRows segment_rows(uint32_t n_slots, uint32_t growth) {
        SegmentRows rows;
        for (uint32_t s = 0; s < n_slots; s++) {
            const uint32_t n = std::min(1 + s * growth, kMaxSegmentRows);
            const auto begin = static_cast<uint32_t>(rows.row_slot.size());
            rows.segments.push_back({begin, n, s, begin});
            rows.row_slot.insert(rows.row_slot.end(), n, s);
            rows.row_slot.push_back(kNoSlot);
        }
        return rows;
    }

    struct GroupTable {
        std::vector<TestModule> modules;  // [slot][module]
        Buffer buffer;
        uint64_t layer() const { return buffer.address() + kLoraModules * sizeof(LoraModule); }
        static constexpr uint32_t kSlotStride = 2 * kLoraModules;
    };
    // One slot for each rank; every other one lacks the second module.
    GroupTable group_table(const std::vector<size_t>& ranks, uint32_t first_module, const std::vector<uint32_t>& n_out,
                           size_t k, double scale) {
        GroupTable made;
        std::vector<LoraModule> table(ranks.size() * GroupTable::kSlotStride);
        for (size_t s = 0; s < ranks.size(); s++) {
            for (size_t m = 0; m < n_out.size(); m++) {
                const size_t rank = m == 1 && s % 2 == 1 ? 0 : ranks[s];
                made.modules.push_back(
                    TestModule::make(n_out[m], k, rank, reference::kTypes[(s + m) % 3], scale, random_));
                table[s * GroupTable::kSlotStride + kLoraModules + first_module + m] = made.modules.back().entry();
            }
        }
        made.buffer = input(table);
        return made;
    }
};

class LoraShrink : public LoraGroupTest {
  protected:
    // A step state with the dispatch of one group.
    static Buffer step_with(const ShrinkDispatch& dispatch, uint32_t group) {
        StepHeader header{};
        header.shrink[group] = dispatch;
        Buffer step = make_buffer(sizeof(header));
        write_buffer(step, std::vector<StepHeader>{header});
        return step;
    }

    // `bucket` says whether the recording is one of few rows or of many.
    void check(const std::vector<size_t>& ranks, Type act, uint32_t k, uint32_t first_module, uint32_t n_modules,
               uint32_t bucket = 32, double tolerance = 0, ShrinkPlace place = ShrinkPlace::kBehindProduct) {
        const uint32_t stride = padded(k), max_rank = static_cast<uint32_t>(std::ranges::max(ranks));
        const GroupTable table = group_table(ranks, first_module, std::vector<uint32_t>(n_modules, 1), k, 1);
        const auto [segments, row_slot] = segment_rows(static_cast<uint32_t>(ranks.size()), 5);
        const auto n_rows = static_cast<uint32_t>(row_slot.size());
        auto x = reference::random_values(size_t{n_rows} * k, act, random_);

        Buffer step = step_with(shrink_dispatch(max_rank, static_cast<uint32_t>(segments.size()), n_modules), 2);
        Buffer segment_buffer = input(segments);
        Buffer x_buffer = input(reference::encode(x, k, stride, act));
        Buffer parts = input(std::vector<float>(LoraPlanner::kShrinkPartBytes / sizeof(float)));
        LoraShrinkParams params{};
        params.lora_layer = table.layer();
        params.segments = segment_buffer.address();
        params.x = x_buffer.address();
        params.lora_slot_stride = GroupTable::kSlotStride;
        params.first_module = first_module;
        params.n_modules = n_modules;
        params.k = k;
        params.x_stride = stride;
        // Twice with k in parts, as arrivals are to be zero again, and once without.
        for (const uint64_t address : {parts.address(), parts.address(), uint64_t{0}}) {
            Buffer low = poisoned(LoraPlanner::lora_low_bytes(n_rows));
            params.low = low.address();
            params.parts = address;
            execute([&](Recorder& recorder) {
                kernels_->lora.lora_shrink(recorder, params, scalar(act), bucket, place, step,
                                           offsetof(StepHeader, shrink[2]));
            });

            auto got = content<float>(low, size_t{n_rows} * n_modules * kMaxRank);
            for (uint32_t t = 0; t < n_rows; t++) {
                for (uint32_t m = 0; m < n_modules; m++) {
                    const float* row = &got[(size_t{t} * n_modules + m) * kMaxRank];
                    std::string what = "row " + std::to_string(t) + " module " + std::to_string(m);
                    uint32_t rank = 0;
                    if (row_slot[t] != kNoSlot) {
                        const TestModule& module = table.modules[row_slot[t] * n_modules + m];
                        rank = static_cast<uint32_t>(module.pair.rank);
                        auto want = reference::multiply(module.a, reference::to_doubles({&x[size_t{t} * k], k}));
                        expect_near(want, row, sum_tolerance(k) + tolerance, 1.0 + std::sqrt(k) / 3, what);
                    }
                    for (uint32_t r = rank; r < round_up(rank, 8); r++)
                        ASSERT_EQ(row[r], 0.0f) << what << " rank " << r;
                    for (uint32_t r = round_up(rank, 8); r < kMaxRank; r++)
                        ASSERT_TRUE(is_poison(row[r])) << what << " rank " << r;
                }
            }
        }
    }
};

TEST_F(LoraShrink, MatchesTheReferenceForMixedRanksAndTypes) {
    check({1, 3, 8, 16, 64}, Type::kF32, 250, kLoraQ, 3);
    check({256, 5}, Type::kF16, 112, kLoraO, 1);
    check({16, 12, 8, 3}, Type::kBf16, 576, kLoraGate, 2);
    check({20}, Type::kF32, 1030, kLoraDown, 1);
}

TEST_F(LoraShrink, FirstMatchesTheReference) {
    check({1, 3, 8, 16, 64}, Type::kF32, 250, kLoraQ, 3, 2, 0, ShrinkPlace::kFirst);
    check({256, 5}, Type::kF16, 112, kLoraO, 1, 2, 0, ShrinkPlace::kFirst);
    check({16, 5}, Type::kBf16, 4200, kLoraDown, 1, 2, 0, ShrinkPlace::kFirst);
    check({0, 0}, Type::kF16, 72, kLoraGate, 2, 2, 0, ShrinkPlace::kFirst);
}

// More pieces of work than workgroups; threads that ask for several chunks of a lone row, more than once; and nothing
// to do.
TEST_F(LoraShrink, TakesPiecesInTurns) {
    check({512, 512, 33}, Type::kF16, 72, kLoraQ, 3);
    check({16, 7}, Type::kF16, 7000, kLoraQ, 3);
    check({300}, Type::kF32, 4200, kLoraDown, 1);
    check({512, 40}, Type::kF16, 576, kLoraGate, 2);
    check({0, 0}, Type::kF16, 72, kLoraGate, 2);
}

TEST_F(LoraShrink, OnMatricesMatchesTheReferenceForMixedRanksAndTypes) {
    kernels_ = must(KernelSet::create(device(), {.path = lorad::testing::best_path()}));
    constexpr uint32_t kMany = 2048;
    uint32_t n_types = 0;
    for (const Type act : {Type::kF16, Type::kBf16}) {
        if (!kernels_->lora.shrinks_by_matrix(scalar(act), kMany)) continue;
        ++n_types;
        // Matrices of another type than x are cut into two parts of x's: 16 bits of f32 beside bf16.
        const double cut = act == Type::kBf16 ? std::ldexp(1.0, -16) : std::ldexp(1.0, -20);
        check({1, 3, 8, 16, 64}, act, 250, kLoraQ, 3, kMany, cut);
        check({512, 5}, act, 112, kLoraO, 1, kMany, cut);
        check({16, 12, 8, 3}, act, 576, kLoraGate, 2, kMany, cut);
        check({20, 33}, act, 1030, kLoraDown, 1, kMany, cut);
        check({16, 17, 40}, act, 3584, kLoraQ, 3, kMany, cut);
    }
    if (n_types == 0) GTEST_SKIP() << "no cooperative matrices: " << device().capabilities().name;
}

TEST_F(LoraShrink, BatchInvariantStepsNeverUseMatrices) {
    kernels_ = must(KernelSet::create(device(), {.path = lorad::testing::best_path(), .batch_invariant = true}));
    for (const Type act : {Type::kF32, Type::kF16, Type::kBf16})
        EXPECT_FALSE(kernels_->lora.shrinks_by_matrix(scalar(act), 4096));
}

// A row has the same bits wherever the shrink is recorded, in steps of any size, alone or beside others of its adapter.
// (CPU devices have workgroups of one size in any case.)
TEST_F(LoraShrink, BatchInvariantStepsHaveTheSameBits) {
    constexpr uint32_t kK = 4200, kRows = 4, kRank = 16;
    kernels_ = must(KernelSet::create(device(), {.path = lorad::testing::best_path(), .batch_invariant = true}));
    const TestModule down = TestModule::make(1, kK, kRank, Type::kF16, 1, random_);
    std::vector<LoraModule> table(kLoraModules);
    table[kLoraDown] = down.entry();
    Buffer table_buffer = input(table),
           x = input(reference::encode(reference::random_values(size_t{kRows} * kK, Type::kF32, random_), kK,
                                       padded(kK), Type::kF32));
    const auto run = [&](const std::vector<LoraSegment>& segments, uint32_t bucket, ShrinkPlace place) {
        Buffer step = step_with(shrink_dispatch(kRank, static_cast<uint32_t>(segments.size()), 1), 3);
        Buffer segment_buffer = input(segments), low = poisoned(LoraPlanner::lora_low_bytes(kRows));
        LoraShrinkParams params{};
        params.lora_layer = table_buffer.address();
        params.segments = segment_buffer.address();
        params.x = x.address();
        params.low = low.address();
        params.lora_slot_stride = kLoraModules;
        params.first_module = kLoraDown;
        params.n_modules = 1;
        params.k = kK;
        params.x_stride = padded(kK);
        execute([&](Recorder& recorder) {
            kernels_->lora.lora_shrink(recorder, params, ScalarType::kF32, bucket, place, step,
                                       offsetof(StepHeader, shrink[3]));
        });
        return content<uint32_t>(low, size_t{kRows} * kMaxRank);
    };
    const std::vector<LoraSegment> together = {{0, kRows, 0, 0}},
                                   alone = {{0, 1, 0, 0}, {1, 1, 0, 1}, {2, 1, 0, 2}, {3, 1, 0, 3}};
    const auto want = run(together, kRows, ShrinkPlace::kBehindProduct);
    for (const uint32_t bucket : {1u, 2u, 4u, 4096u}) {
        for (const ShrinkPlace place : {ShrinkPlace::kFirst, ShrinkPlace::kBehindProduct}) {
            EXPECT_EQ(run(together, bucket, place), want) << bucket;
            EXPECT_EQ(run(alone, bucket, place), want) << bucket;
        }
    }
}

TEST_F(LoraShrink, WithoutAdaptersTheGridIsEmpty) {
    for (const ShrinkDispatch& dispatch : {shrink_dispatch(0, 3, 3), shrink_dispatch(16, 0, 3)}) {
        EXPECT_EQ(dispatch.grid[0] * dispatch.grid[1] * dispatch.grid[2], 0u);
        EXPECT_EQ(dispatch.stride_grid[0], 0u);
    }
}

TEST_F(LoraShrink, AsManyWorkgroupsTakeTurnsAsPay) {
    EXPECT_EQ(shrink_dispatch(3, 1, 1).stride_grid[0], 4u) << "one for each piece of 2 ranks";
    EXPECT_EQ(shrink_dispatch(16, 8, 3).stride_grid[0], kShrinkWorkgroupsMin) << "192 pieces";
    EXPECT_EQ(shrink_dispatch(16, 64, 1).stride_grid[0], 257u) << "512 pieces";
    EXPECT_EQ(shrink_dispatch(512, 64, 3).stride_grid[0], kShrinkWorkgroupsMax);
}

class LoraExpand : public LoraGroupTest {
  protected:
    void check(const std::vector<size_t>& ranks, const std::vector<uint32_t>& n_out) {
        const auto n_slots = static_cast<uint32_t>(ranks.size()), n_modules = static_cast<uint32_t>(n_out.size());
        LoraExpandParams params{};
        uint32_t n = 0;
        for (uint32_t m = 0; m < n_modules; m++) params.module_end[m] = n += n_out[m];
        const uint32_t stride = padded(n);
        constexpr uint32_t kFirstModule = kLoraGate;
        const GroupTable table = group_table(ranks, kFirstModule, n_out, 8, 0.7);
        const auto [segments, row_slot] = segment_rows(n_slots, 3);
        const auto n_rows = static_cast<uint32_t>(row_slot.size());
        const auto low = reference::random_values(size_t{n_rows} * n_modules * kMaxRank, Type::kF32, random_);
        const auto y = reference::random_values(size_t{n_rows} * stride, Type::kF32, random_, 3.0f);
        Buffer y_buffer = input(y), low_buffer = input(low), segment_buffer = input(segments);
        Buffer count = input(std::vector<uint32_t>{n_slots});
        params.n_segments = count.address();
        params.segments = segment_buffer.address();
        params.lora_layer = table.layer();
        params.low = low_buffer.address();
        params.y = y_buffer.address();
        params.lora_slot_stride = GroupTable::kSlotStride;
        params.first_module = kFirstModule;
        params.n_modules = n_modules;
        params.y_stride = stride;
        execute([&](Recorder& recorder) { kernels_->lora.lora_expand(recorder, params); });

        const auto got = content<float>(y_buffer, y.size());
        for (uint32_t t = 0; t < n_rows; t++) {
            const std::string what = "row " + std::to_string(t);
            for (uint32_t m = 0, begin = 0; m < n_modules; begin += n_out[m++]) {
                Vector want = reference::to_doubles({&y[size_t{t} * stride + begin], n_out[m]});
                const uint32_t slot = row_slot[t];
                if (slot != kNoSlot) {
                    add_expand(want, table.modules[slot * n_modules + m].pair,
                               reference::to_doubles({&low[(size_t{t} * n_modules + m) * kMaxRank], kMaxRank}));
                }
                expect_near(want, &got[size_t{t} * stride + begin], slot == kNoSlot ? 0.0 : 4e-6, 30.0,
                            what + " module " + std::to_string(m));
            }
            for (uint32_t i = n; i < stride; i++)
                ASSERT_EQ(got[size_t{t} * stride + i], y[size_t{t} * stride + i]) << what << ": padding";
        }
    }
};

TEST_F(LoraExpand, AddsToTheSumsForMixedRanksAndTypes) {
    check({64, 3, 512, 40}, {130, 67, 250});
    check({128, 33, 1, 16, 8, 72}, {600});
    check({0, 0}, {64, 64});
}

// More outputs than workgroups take in one block each.
TEST_F(LoraExpand, TakesPiecesInTurns) { check({40, 16}, {140'000}); }

TEST_F(LoraExpand, OnlyForManyRanksAndFewRows) {
    EXPECT_TRUE(kernels_->lora.expands_apart(64, 1));
    EXPECT_TRUE(kernels_->lora.expands_apart(33, 128));
    EXPECT_FALSE(kernels_->lora.expands_apart(32, 8));
    EXPECT_FALSE(kernels_->lora.expands_apart(64, 192));
    // Whether a row's part is added by it depends on others' ranks.
    const auto invariant =
        must(KernelSet::create(device(), {.path = lorad::testing::best_path(), .batch_invariant = true}));
    EXPECT_FALSE(invariant->lora.expands_apart(64, 8));
}

struct GatedCase {
    uint32_t ffn, n_rows, bucket, n_splits;
    Activation activation;
    Type act;
    bool with_bias, with_lora;
    bool same_type = false;  // of all B as of act; else they differ
    uint32_t whole_rows = 0;
};

class GatedActTest : public KernelTest {
  protected:
    void check(const GatedCase& c, bool few_runs);
};
class GatedAct : public GatedActTest, public ::testing::WithParamInterface<GatedCase> {};

void GatedActTest::check(const GatedCase& c, bool few_runs) {
    constexpr uint32_t kSlots = 3;
    uint32_t y_stride = padded(2 * c.ffn);
    uint32_t act_stride = padded(c.ffn);
    size_t gate_ranks[kSlots] = {16, 0, 9};
    size_t up_ranks[kSlots] = {3, 40, 0};
    std::vector<TestModule> gate, up;
    std::vector<LoraModule> table(kSlots * kLoraModules);
    for (uint32_t s = 0; s < kSlots; s++) {
        const Type type = c.same_type ? c.act : reference::kTypes[s];
        gate.push_back(TestModule::make(c.ffn, 8, gate_ranks[s], type, 0.7, random_));
        up.push_back(TestModule::make(c.ffn, 8, up_ranks[s], type, 0.7, random_));
        table[s * kLoraModules + kLoraGate] = gate[s].entry();
        table[s * kLoraModules + kLoraUp] = up[s].entry();
    }
    std::vector<StepRow> rows(c.bucket);
    for (uint32_t t = 0; t < c.bucket; t++) rows[t].adapter_slot = t % 5 == 4 ? kNoSlot : t / 3 % kSlots;
    auto low = reference::random_values(size_t{c.bucket} * 2 * kMaxRank, Type::kF32, random_);
    uint32_t capacity = c.bucket + kSlackRows;
    auto y = reference::random_values(size_t{c.n_splits} * capacity * 2 * c.ffn, Type::kF32, random_, 3.0f);
    poison_other_splits(y, c.n_splits, c.whole_rows, capacity, 2 * c.ffn);
    auto bias = reference::random_values(2 * c.ffn, Type::kF32, random_);
    Buffer step = step_state(rows, c.n_rows);
    Buffer y_buffer = input(reference::encode(y, 2 * c.ffn, y_stride, Type::kF32));
    Buffer bias_buffer = input(bias);
    Buffer low_buffer = input(low);
    Buffer table_buffer = input(table);
    Buffer act = poisoned(uint64_t{c.bucket} * act_stride * 4);
    GatedActParams params{};
    params.step = step.address();
    params.y = y_buffer.address();
    params.bias = c.with_bias ? bias_buffer.address() : 0;
    params.low = low_buffer.address();
    params.lora_layer = table_buffer.address();
    params.act = act.address();
    params.lora_slot_stride = kLoraModules;
    params.ffn = c.ffn;
    params.y_stride = y_stride;
    params.split_stride = capacity * y_stride;
    params.act_stride = act_stride;
    const ConsumerShape shape{c.bucket, c.n_splits, level(c.with_lora), few_runs, c.whole_rows};
    ASSERT_EQ(kernels_->rows.gates_by_matrix(params, shape, scalar(c.act)), few_runs);
    execute(
        [&](Recorder& recorder) { kernels_->rows.gated_act(recorder, params, shape, c.activation, scalar(c.act)); });
    if (c.act != Type::kF32 && !few_runs) {
        const size_t block_bytes = size_t{round_up(c.bucket, kFragmentRowsMost)} * act_stride * 2;
        auto rows_bytes = content<std::byte>(act, size_t{c.bucket} * act_stride * 2);
        rows_bytes.resize(block_bytes, std::byte{0xff});
        params.act = 0;
        for (const uint32_t order : kFragmentOrders) {
            if (!may_have_order(act_stride, order)) continue;
            Buffer blocks = poisoned(block_bytes);
            params.act_fragments = blocks.address();
            execute([&](Recorder& recorder) {
                kernels_->rows.gated_act(recorder, params, shape, c.activation, scalar(c.act), order);
            });
            EXPECT_EQ(content<std::byte>(blocks, block_bytes), in_fragments(rows_bytes, act_stride, order))
                << "order " << order;
        }
    }

    auto got = content(act, size_t{c.bucket} * act_stride, c.act);
    for (uint32_t t = 0; t < c.bucket; t++) {
        const float* row = &got[size_t{t} * act_stride];
        if (t >= c.n_rows) {
            for (uint32_t i = 0; i < act_stride; i++) ASSERT_TRUE(is_poison(row[i])) << "row " << t << " was written";
            continue;
        }
        Vector sums[2] = {Vector(c.ffn), Vector(c.ffn)};
        for (uint32_t half = 0; half < 2; half++) {
            for (uint32_t i = 0; i < c.ffn; i++) {
                uint32_t column = half * c.ffn + i;
                for (uint32_t s = 0; s < (t < c.whole_rows ? 1 : c.n_splits); s++) {
                    sums[half][i] += y[(size_t{s} * capacity + t) * 2 * c.ffn + column];
                }
                if (c.with_bias) sums[half][i] += bias[column];
            }
            uint32_t slot = rows[t].adapter_slot;
            if (c.with_lora && slot != kNoSlot) {
                auto low_row = reference::to_doubles({&low[(t * 2 + half) * kMaxRank], kMaxRank});
                add_expand(sums[half], (half == 0 ? gate : up)[slot].pair, low_row);
            }
        }
        Vector want(c.ffn);
        for (uint32_t i = 0; i < c.ffn; i++) {
            double g = sums[0][i];
            want[i] = (c.activation == Activation::kSilu ? reference::silu(g) : reference::gelu_tanh(g)) * sums[1][i];
        }
        expect_near(want, row, unit_roundoff(c.act) + 4e-6, 60.0, "row " + std::to_string(t));
        for (uint32_t i = c.ffn; i < act_stride; i++) ASSERT_EQ(row[i], 0.0f) << "padding of row " << t;
    }
}

TEST_P(GatedAct, AppliesSplitsBiasAdaptersAndTheActivation) { check(GetParam(), false); }

INSTANTIATE_TEST_SUITE_P(
    Shapes, GatedAct,
    ::testing::Values(GatedCase{250, 3, 4, 2, Activation::kSilu, Type::kF32, true, true},
                      GatedCase{576, 1, 1, 1, Activation::kSilu, Type::kF32, false, false},
                      GatedCase{112, 18, 24, 1, Activation::kGeluTanh, Type::kF16, true, true},
                      GatedCase{251, 17, 24, 3, Activation::kSilu, Type::kBf16, false, true},
                      GatedCase{96, 70, 96, 1, Activation::kGeluTanh, Type::kF32, false, true},
                      GatedCase{250, 131, 192, 2, Activation::kSilu, Type::kF32, true, true},
                      GatedCase{128, 192, 192, 1, Activation::kSilu, Type::kF16, false, true},
                      GatedCase{112, 90, 96, 3, Activation::kSilu, Type::kF16, true, true, false, 64},
                      GatedCase{64, 192, 192, 2, Activation::kSilu, Type::kF32, false, true, false, 128}));

// Without adapters a thread takes two to four of up to 128 rows, where there are more of them than run side by side.
TEST_F(GatedActTest, AThreadTakesSeveralRowsOfManyColumns) {
    const uint32_t units = multiprocessors(device().capabilities());
    check({64 * units - 1, 127, 128, 2, Activation::kSilu, Type::kF16, true, false}, false);
    check({96 * units - 4, 125, 128, 1, Activation::kGeluTanh, Type::kF32, false, false}, false);
    check({64 * units, 126, 128, 2, Activation::kSilu, Type::kBf16, false, false, false, 64}, false);
    check({160 * units, 126, 128, 1, Activation::kSilu, Type::kF16, false, false}, false);
    check({512 * units, 3, 4, 1, Activation::kSilu, Type::kF16, false, false}, false);
}

// With them a thread of fewer than 128 rows takes two to five groups of columns in turns; not all workgroups have the
// last one.
TEST_F(GatedActTest, AThreadTakesColumnsInTurnsWithAdapters) {
    const uint32_t units = multiprocessors(device().capabilities());
    check({64 * units - 1, 61, 64, 2, Activation::kSilu, Type::kF16, true, true}, false);
    check({96 * units - 16, 63, 64, 1, Activation::kGeluTanh, Type::kF32, false, true}, false);
    check({192 * units, 62, 64, 1, Activation::kSilu, Type::kBf16, false, true, false, 32}, false);
}

class GatedActOnMatrices : public GatedAct {};

TEST_P(GatedActOnMatrices, AppliesSplitsAdaptersAndTheActivation) {
    kernels_ = must(KernelSet::create(device(), {.path = lorad::testing::best_path()}));
    GatedActParams params{};
    params.ffn = params.y_stride = 64;
    const ConsumerShape shape{kAdapterTileRows, 1, LoraLevel::kPlain, true};
    if (!kernels_->rows.gates_by_matrix(params, shape, scalar(GetParam().act)))
        GTEST_SKIP() << "no cooperative matrices: " << device().capabilities().name;
    params.ffn = 65;
    EXPECT_FALSE(kernels_->rows.gates_by_matrix(params, shape, scalar(GetParam().act))) << "its columns come by 64";
    check(GetParam(), true);
}

std::vector<GatedCase> matrix_cases(Type act) {
    return {{64, 32, 32, 1, Activation::kSilu, act, false, true},
            {192, 70, 96, 3, Activation::kSilu, act, false, true},
            {576, 127, 128, 1, Activation::kGeluTanh, act, false, true},
            {64, 1, 32, 2, Activation::kSilu, act, false, true},
            {320, 61, 64, 1, Activation::kSilu, act, false, true, true},
            {128, 160, 160, 2, Activation::kSilu, act, false, true, true},
            {64, 100, 128, 3, Activation::kSilu, act, false, true, false, 64}};
}
INSTANTIATE_TEST_SUITE_P(F16, GatedActOnMatrices, ::testing::ValuesIn(matrix_cases(Type::kF16)));
INSTANTIATE_TEST_SUITE_P(Bf16, GatedActOnMatrices, ::testing::ValuesIn(matrix_cases(Type::kBf16)));

TEST_F(KernelTest, GatedActGivesTheSameBitsHoweverManyRowsAWorkgroupTakes) {
    constexpr uint32_t kFfn = 96, kRows = 140, kBucket = 192;
    const TestModule gate = TestModule::make(kFfn, 8, 16, Type::kF16, 0.7, random_),
                     up = TestModule::make(kFfn, 8, 5, Type::kF32, 0.5, random_);
    std::vector<LoraModule> table(kLoraModules);
    table[kLoraGate] = gate.entry();
    table[kLoraUp] = up.entry();
    std::vector<StepRow> rows(kBucket);
    for (uint32_t t = 0; t < kBucket; t++) rows[t].adapter_slot = t % 9 == 4 ? kNoSlot : 0;
    Buffer step = step_state(rows, kRows), table_buffer = input(table);
    Buffer low = input(reference::random_values(size_t{kBucket} * 2 * kMaxRank, Type::kF32, random_));
    Buffer y = input(reference::random_values(size_t{kBucket + kSlackRows} * 2 * kFfn, Type::kF32, random_));
    const auto run = [&](uint32_t expand_rows) {
        kernels_ = must(KernelSet::create(device(), {.path = KernelPath::kPortable, .expand_rows = expand_rows}));
        Buffer act = poisoned(uint64_t{kBucket} * padded(kFfn) * 4);
        GatedActParams params{};
        params.step = step.address();
        params.y = y.address();
        params.low = low.address();
        params.lora_layer = table_buffer.address();
        params.act = act.address();
        params.lora_slot_stride = kLoraModules;
        params.ffn = kFfn;
        params.y_stride = 2 * kFfn;
        params.act_stride = padded(kFfn);
        execute([&](Recorder& recorder) {
            kernels_->rows.gated_act(recorder, params, {kBucket, 1, LoraLevel::kPlain}, Activation::kSilu,
                                     ScalarType::kF32);
        });
        return content<uint32_t>(act, size_t{kBucket} * padded(kFfn));
    };
    const auto one = run(1);
    for (const uint32_t expand_rows : {2u, 4u, 8u, 16u}) EXPECT_EQ(run(expand_rows), one) << expand_rows;
}

}  // namespace
}  // namespace lorad::gpu::testing::lora_test
