#include <cmath>
#include <cstddef>

#include "gpu/kernels/products/warpgroup_tiles.h"
#include "tests/gpu/kernels/kernel_fixture.h"

namespace lorad::gpu::testing::lora_stack_test {
namespace {

// Adapters stacked on a product, against fp64: what lora_stack and lora_shrink leave for it, wherever there are
// matrices, and the product where there are kernels by warpgroups.
class LoraStack : public KernelTest {
  protected:
    struct Case {
        Type type;
        uint32_t k;
        std::vector<uint32_t> module_n;
        std::vector<Adapter> adapters;
        std::vector<AdapterRun> runs;
    };

    void SetUp() override {
        KernelTest::SetUp();
        kernels_ = must(KernelSet::create(device(), {.path = lorad::testing::best_path()}));
    }

    // The group, windows and segments as the host writes them; adapters in the order of their numbers, which are their
    // slots.
    struct Stacked {
        StackedGroup group{};
        std::vector<StackedWindow> windows;
        std::vector<LoraSegment> segments;
        std::vector<StepRow> rows;
        uint32_t rank_max = 0;
    };
    static Stacked stacked_of(const Case& c) {
        Stacked stacked;
        const auto n_modules = static_cast<uint32_t>(c.module_n.size());
        for (uint32_t a = 0; a < c.adapters.size(); a++) {
            const uint32_t rank = std::ranges::max(c.adapters[a].ranks), n_parts = c.adapters[a].type == c.type ? 2 : 3;
            stacked.rank_max = std::max(stacked.rank_max, rank);
            stacked.group.adapters[a] = {stacked.group.n_blocks, ceil_div(rank, 16), n_parts, 0};
            for (uint32_t m = 0; m < n_modules; m++) {
                for (uint32_t r = 0; r < rank; r += 16) {
                    for (uint32_t part = 0; part < n_parts; part++)
                        stacked.group.blocks[stacked.group.n_blocks++] = {a, r | m << 16 | part << 24};
                }
            }
        }
        while (stacked.group.n_blocks % 4 != 0) stacked.group.blocks[stacked.group.n_blocks++] = {kNoSlot, 0};
        for (const AdapterRun& run : c.runs) {
            const auto begin = static_cast<uint32_t>(stacked.rows.size()), end = begin + run.n_rows;
            for (uint32_t row = begin; row < end; row++) {
                StepRow made{};
                made.adapter_slot = run.adapter < 0 ? kNoSlot : static_cast<uint32_t>(run.adapter);
                stacked.rows.push_back(made);
            }
            for (uint32_t row = begin; row < end && run.adapter >= 0;) {
                const uint32_t n_rows = std::min(end - row, 16 - row % 16), slot = static_cast<uint32_t>(run.adapter);
                stacked.segments.push_back({row, n_rows, slot, slot});
                row += n_rows;
            }
        }
        for (size_t row = 0; row < stacked.rows.size(); row += kStackedTileRows) {
            uint32_t first = kStackedBlocksMax, end = 0;
            for (size_t i = row; i < std::min(row + kStackedTileRows, stacked.rows.size()); i++) {
                if (stacked.rows[i].adapter_slot == kNoSlot) continue;
                const StackedAdapter& adapter = stacked.group.adapters[stacked.rows[i].adapter_slot];
                first = std::min(first, adapter.first_block);
                end = std::max(end, adapter.first_block + n_modules * adapter.rank_blocks * adapter.parts);
            }
            stacked.windows.push_back(first < end ? StackedWindow{first / 4, ceil_div(end, 4) - first / 4}
                                                  : StackedWindow{0, 0});
        }
        return stacked;
    }

    // All that a step has of a case.
    struct Step {
        Stacked stacked;
        uint32_t n_rows = 0, n = 0, n_modules = 0, bucket = 0, columns = 0;
        std::vector<std::vector<TestModule>> modules;  // [adapter][module]
        std::vector<float> x;
        Buffer x_fragments, table, state, segments, group, windows, parts, b, low;
    };
    Step prepare(const Case& c) {
        Step s;
        s.stacked = stacked_of(c);
        s.n_rows = static_cast<uint32_t>(s.stacked.rows.size());
        s.n_modules = static_cast<uint32_t>(c.module_n.size());
        s.bucket = std::max(round_up(s.n_rows, 16), 128u);
        s.columns = s.n_modules * kStackedModuleColumns;
        for (const uint32_t n : c.module_n) s.n += n;
        std::vector<LoraModule> table((c.adapters.size() + 1) * kLoraModules);
        for (size_t a = 0; a < c.adapters.size(); a++) {
            auto& modules = s.modules.emplace_back();
            for (uint32_t m = 0; m < s.n_modules; m++) {
                modules.push_back(TestModule::make(c.module_n[m], c.k, c.adapters[a].ranks[m], c.adapters[a].type,
                                                   0.5 + double(m), random_));
                table[a * kLoraModules + m] = modules.back().entry();
            }
        }
        s.x = reference::random_values(size_t{s.n_rows} * c.k, c.type, random_);
        auto x_bytes = reference::encode(s.x, c.k, padded(c.k), c.type);
        x_bytes.resize(size_t{s.bucket + kSlackRows} * padded(c.k) * 2, std::byte{0xff});
        s.x_fragments = input(in_fragments(x_bytes, padded(c.k), kFragmentsByRows));
        s.table = input(table);
        auto rows = s.stacked.rows;
        rows.resize(s.bucket);
        s.state = step_state(rows, s.n_rows);
        const ShrinkDispatch shrink =
            shrink_dispatch(s.stacked.rank_max, static_cast<uint32_t>(s.stacked.segments.size()), s.n_modules);
        std::memcpy(s.state.mapped().data() + offsetof(StepHeader, shrink), &shrink, sizeof(shrink));
        s.segments = input(s.stacked.segments);
        s.group = input(std::vector{s.stacked.group});
        s.windows = input(s.stacked.windows);
        s.parts = make_buffer(LoraPlanner::kShrinkPartBytes, MemoryKind::kHostUpload);
        std::memset(s.parts.mapped().data(), 0, s.parts.size());
        s.b = poisoned(ProductPlanner::stacked_b_bytes(padded(s.n), s.n_modules));
        s.low = poisoned(ProductPlanner::stacked_low_bytes(s.bucket, s.n_modules));
        return s;
    }

    void record_stack(Recorder& recorder, const Case& c, const Step& s) {
        LoraShrinkParams shrink{};
        shrink.lora_layer = s.table.address();
        shrink.segments = s.segments.address();
        shrink.x = s.x_fragments.address();
        shrink.parts = s.parts.address();
        shrink.lora_slot_stride = kLoraModules;
        shrink.n_modules = s.n_modules;
        shrink.k = c.k;
        shrink.x_stride = padded(c.k);
        shrink.stacked = s.group.address();
        shrink.stacked_low = s.low.address();
        kernels_->lora.lora_shrink(recorder, shrink, scalar(c.type), s.bucket, ShrinkPlace::kFirst, s.state,
                                   offsetof(StepHeader, shrink));
        LoraStackParams stack{};
        stack.step = s.state.address();
        stack.group = s.group.address();
        stack.windows = s.windows.address();
        stack.lora_layer = s.table.address();
        stack.b = s.b.address();
        stack.low = s.low.address();
        stack.lora_slot_stride = kLoraModules;
        stack.n_modules = s.n_modules;
        stack.n = padded(s.n);
        uint32_t end = 0;
        for (uint32_t m = 0; m < s.n_modules; m++) stack.module_end[m] = end += c.module_n[m];
        kernels_->lora.lora_stack(recorder, stack, scalar(c.type));
    }

    // What the row's adapter adds, and how large its summands are.
    static std::pair<std::vector<double>, double> added(const Case& c, const Step& s, uint32_t t) {
        std::vector<double> want(s.n);
        double magnitude = 0;
        const uint32_t slot = s.stacked.rows[t].adapter_slot;
        if (slot == kNoSlot) return {want, magnitude};
        uint32_t column = 0;
        for (uint32_t m = 0; m < s.n_modules; m++) {
            const TestModule& module = s.modules[slot][m];
            const size_t rank = module.pair.rank;
            magnitude = std::max(magnitude, module.pair.scale * std::sqrt(static_cast<double>(c.k * rank)));
            const auto low = rank == 0
                                 ? std::vector<double>()
                                 : reference::multiply(module.a, reference::to_doubles({&s.x[size_t{t} * c.k], c.k}));
            for (uint32_t i = 0; i < c.module_n[m]; i++, column++) {
                for (size_t r = 0; r < rank; r++) want[column] += module.pair.scale * module.b[i * rank + r] * low[r];
            }
        }
        return {want, magnitude};
    }

    void check(const Case& c) {
        SCOPED_TRACE(::testing::Message()
                     << "type " << int(c.type) << ", k " << c.k << ", adapters " << c.adapters.size());
        const Step s = prepare(c);
        execute([&](Recorder& recorder) { record_stack(recorder, c, s); });
        const uint32_t n_columns = s.stacked.group.n_blocks * 16;
        const auto b = content(s.b, size_t{padded(s.n)} * s.columns, c.type),
                   low = content(s.low, s.low.size() / 2, c.type);
        for (uint32_t t = 0; t < s.n_rows; t += 7) {
            const auto [want, magnitude] = added(c, s, t);
            const StackedWindow window = s.stacked.windows[t / kStackedTileRows];
            std::vector<float> got(s.n);
            for (uint32_t i = 0; i < s.n; i++) {
                double sum = 0;
                for (uint32_t column = window.begin * kStackedStep; column < (window.begin + window.n) * kStackedStep;
                     column++) {
                    sum += double{b[size_t{i} * s.columns + column]} *
                           low[fragment_offset(t, column, s.columns, kFragmentsByRows) / 2];
                }
                got[i] = static_cast<float>(sum);
            }
            // Two parts of 16-bit numbers hold 16 bits (bf16) or more.
            expect_near(want, got.data(), std::ldexp(3.0, -16) + 10 * sum_tolerance(c.k), magnitude,
                        "row " + std::to_string(t));
        }
        for (uint32_t i = 0; i < padded(s.n); i++) {
            for (uint32_t column = n_columns; column < s.columns; column++)
                ASSERT_TRUE(is_poison(b[size_t{i} * s.columns + column])) << "behind the last block";
            for (uint32_t column = 0; i >= s.n && column < n_columns; column++)
                ASSERT_EQ(b[size_t{i} * s.columns + column], 0.0f) << "padding";
        }
        for (uint32_t column = n_columns; column < s.columns; column++)
            ASSERT_TRUE(is_poison(low[fragment_offset(0, column, s.columns, kFragmentsByRows) / 2]));
        const auto arrivals = content<uint32_t>(s.parts, s.parts.size() / 4);
        for (size_t i = s.parts.size() / 4 - kShrinkAllPartsMax; i < s.parts.size() / 4; i++)
            ASSERT_EQ(arrivals[i], 0u);
    }

    static Product stacked(const Case& c, uint32_t rows) {
        return {.type = scalar(c.type), .rows = rows, .adapters = AdapterForm::kStacked};
    }
    static StackedAdapters stacked_columns(const Step& s) {
        return {.windows = s.windows.address(),
                .b = s.b.address(),
                .low = s.low.address(),
                .columns = s.n_modules * kStackedModuleColumns};
    }

    // The product with all that.
    void check_product(const Case& c, uint32_t tile, uint32_t n_splits) {
        const Step s = prepare(c);
        const uint32_t stride = padded(c.k), n_padded = padded(s.n), steps = stride / kWarpgroupTiles[tile].k,
                       split_steps = ceil_div(steps, n_splits);
        const MatmulPlan plan = warpgroup_plan(tile, stacked(c, s.bucket), ceil_div(steps, split_steps),
                                               split_steps * kWarpgroupTiles[tile].k);
        SCOPED_TRACE(describe(plan));
        ASSERT_TRUE(plan.row_tile == kStackedTileRows && kernels_->ladder().has(RungId::kStacked, scalar(c.type)));
        auto w = reference::random_values(size_t{s.n} * c.k, c.type, random_);
        w.resize(size_t{n_padded} * c.k);
        const Buffer w_buffer = input(reference::encode(w, c.k, stride, c.type));
        const size_t split_stride = size_t{round_up(s.bucket, plan.row_tile)} * n_padded;
        const Buffer y = poisoned(plan.n_splits * split_stride * 4);
        const ProductArguments arguments{
            .product = product_params(s.n, c.k, s.state, w_buffer, s.x_fragments, y, split_stride),
            .stacked = stacked_columns(s)};
        execute([&](Recorder& recorder) {
            record_stack(recorder, c, s);
            recorder.barrier();
            kernels_->products.record(recorder, plan, arguments);
        });
        const auto parts = content<float>(y, plan.n_splits * split_stride);
        w.resize(size_t{s.n} * c.k);
        for (uint32_t t = 0; t < s.n_rows; t += 11) {
            auto [want, magnitude] = added(c, s, t);
            const auto base = reference::multiply(w, reference::to_doubles({&s.x[size_t{t} * c.k], c.k}));
            std::vector<float> got(s.n);
            for (uint32_t i = 0; i < s.n; i++) {
                want[i] += base[i];
                for (uint32_t split = 0; split < plan.n_splits; split++)
                    got[i] += parts[split * split_stride + size_t{t} * n_padded + i];
            }
            expect_near(want, got.data(), std::ldexp(3.0, -16) + 10 * sum_tolerance(c.k), magnitude + std::sqrt(c.k),
                        "row " + std::to_string(t));
        }
    }

    // Gates are the first module, ups the second.
    void check_gated(const Case& c, uint32_t tile) {
        const Step s = prepare(c);
        const uint32_t stride = padded(c.k), ffn = c.module_n[0];
        Product product = stacked(c, s.bucket);
        product.result = ProductResult::kGated;
        const MatmulPlan plan = warpgroup_plan(tile, product, 1, stride);
        if (!kWarpgroupTiles[tile].may_gate()) return;
        SCOPED_TRACE(describe(plan));
        ASSERT_TRUE(plan.row_tile == kStackedTileRows && kernels_->ladder().has(RungId::kStacked, scalar(c.type)));
        const auto w = reference::random_values(size_t{s.n} * c.k, c.type, random_);
        const Buffer w_buffer = input(reference::encode(w, c.k, stride, c.type));
        const size_t n_bytes = size_t{round_up(s.bucket, plan.row_tile)} * ffn * 2;
        const Buffer y = poisoned(n_bytes);
        ProductArguments arguments{.y_order = kFragmentsByRows, .stacked = stacked_columns(s)};
        MatmulParams& params = arguments.product;
        params.n_rows = s.state.address();
        params.w = w_buffer.address();
        params.x = s.x_fragments.address();
        params.y_fragments = y.address();
        params.n = params.y_stride = ffn;
        params.k = c.k;
        params.w_stride = params.x_stride = stride;
        execute([&](Recorder& recorder) {
            record_stack(recorder, c, s);
            recorder.barrier();
            kernels_->products.record(recorder, plan, arguments);
        });
        const auto got = content<uint16_t>(y, n_bytes / 2);
        for (uint32_t t = 0; t < s.n_rows; t += 11) {
            auto [sums, magnitude] = added(c, s, t);
            const auto base = reference::multiply(w, reference::to_doubles({&s.x[size_t{t} * c.k], c.k}));
            for (uint32_t i = 0; i < s.n; i++) sums[i] += base[i];
            for (uint32_t f = 0; f < ffn; f++) {
                const double want = sums[f] / (1.0 + std::exp(-sums[f])) * sums[ffn + f];
                const float have = decode16(got[fragment_offset(t, f, ffn, kFragmentsByRows) / 2], scalar(c.type));
                if (!std::isfinite(have) && c.type == Type::kF16 && std::fabs(want) > 65000) continue;
                ASSERT_NEAR(
                    have, want,
                    (std::fabs(want) + 0.05 * (magnitude + std::sqrt(c.k))) * (c.type == Type::kBf16 ? 8e-3 : 1e-3))
                    << "row " << t << ", column " << f;
            }
        }
    }

    // Runs that begin in the midst of a block, in a tile without adapters and in one with several; modules of other
    // ranks than the adapter's largest, and of none.
    std::vector<Case> cases(Type type) const {
        const Type other = type == Type::kF16 ? Type::kBf16 : Type::kF16;
        return {{type,
                 320,
                 {192, 64, 64},
                 {{{16, 5, 40}, type}, {{8, 0, 24}, Type::kF32}, {{3, 3, 3}, other}},
                 {{-1, 3}, {0, 50}, {1, 70}, {0, 1}, {-1, 9}, {1, 30}, {2, 13}}},
                {type, 640, {448}, {{{16}, type}}, {{0, 300}}},
                {type, 1088, {192, 160}, {{{64, 64}, type}, {{16, 16}, type}}, {{0, 130}, {-1, 140}, {1, 20}}},
                {type, 192, {320}, {{{33}, Type::kF32}}, {{-1, 140}, {0, 1}}},
                // One tile of rows, full; an adapter that has nothing here.
                {type, 256, {320}, {{{16}, type}, {{0}, type}, {{8}, Type::kF32}}, {{0, 40}, {1, 40}, {2, 48}}}};
    }
};

TEST_F(LoraStack, LeavesWhatTheProductAddsUp) {
    if (matrix_types().empty()) GTEST_SKIP() << "no cooperative matrices: " << device().capabilities().name;
    for (const Type type : matrix_types()) {
        if (!kernels_->lora.shrinks_by_matrix(scalar(type), 128))
            GTEST_SKIP() << "no shrinks on matrices: " << device().capabilities().name;
        for (const Case& c : cases(type)) check(c);
    }
}

// What f16 cannot hold is as much as it can, and harms no other row.
TEST_F(LoraStack, LargeMatricesStayWithTheirRows) {
    if (matrix_types().empty()) GTEST_SKIP() << "no cooperative matrices: " << device().capabilities().name;
    const Case c{Type::kF16, 128, {128}, {{{8}, Type::kF32}, {{8}, Type::kF16}}, {{0, 20}, {1, 20}, {-1, 20}}};
    Step s = prepare(c);
    s.modules[0][0].b_buffer = input(std::vector<float>(size_t{128} * 8, 1e6f));
    LoraModule entry = s.modules[0][0].entry();
    std::memcpy(s.table.mapped().data(), &entry, sizeof(entry));
    execute([&](Recorder& recorder) { record_stack(recorder, c, s); });
    const auto b = content(s.b, size_t{padded(s.n)} * s.columns, c.type),
               low = content(s.low, s.low.size() / 2, c.type);
    const uint32_t n_columns = s.stacked.group.n_blocks * 16;
    for (uint32_t i = 0; i < s.n; i++) {
        EXPECT_EQ(b[size_t{i} * s.columns], 65504.0f) << i;
        for (uint32_t column = 0; column < n_columns; column++)
            ASSERT_TRUE(std::isfinite(b[size_t{i} * s.columns + column])) << i << ", " << column;
    }
    for (uint32_t t = 20; t < s.n_rows; t++) {
        for (uint32_t column = 0; column < 48; column++)
            ASSERT_EQ(low[fragment_offset(t, column, s.columns, kFragmentsByRows) / 2], 0.0f)
                << "the first adapter's, row " << t;
    }
}

TEST_F(LoraStack, ProductsOfEachTileAddItUp) {
    if (!device().capabilities().warpgroup_matrices)
        GTEST_SKIP() << "no kernels by warpgroups: " << device().capabilities().name;
    kernels_ = must(KernelSet::create(device(), {}));
    uint32_t n_tiles = 0;
    for (uint32_t tile = 0; tile < kWarpgroupTiles.size(); tile++) {
        if (kWarpgroupTiles[tile].rows() != kStackedTileRows) continue;
        n_tiles++;
        for (const Type type : {Type::kF16, Type::kBf16}) {
            for (const Case& c : cases(type)) {
                for (const uint32_t n_splits : {1u, 3u}) check_product(c, tile, n_splits);
            }
            check_gated({type, 320, {192, 192}, {{{16, 5}, type}, {{8, 0}, Type::kF32}}, {{-1, 3}, {0, 150}, {1, 70}}},
                        tile);
        }
    }
    EXPECT_EQ(n_tiles, 4u);
}

}  // namespace
}  // namespace lorad::gpu::testing::lora_stack_test
