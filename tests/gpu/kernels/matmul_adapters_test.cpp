#include <cmath>

#include "tests/gpu/kernels/kernel_fixture.h"

namespace lorad::gpu::testing::matmul_adapters_test {
namespace {

// The product with the rows' adapters in its sums, against fp64. The shrink's results are given, not computed.
class MatmulAdapters : public KernelTest {
  protected:
    void SetUp() override {
        KernelTest::SetUp();
        kernels_ = must(KernelSet::create(device(), {.path = lorad::testing::best_path()}));
    }

    void check(Type type, uint32_t k, uint32_t bucket, const std::vector<uint32_t>& module_n,
               const std::vector<Adapter>& adapters, const std::vector<AdapterRun>& runs, uint32_t whole_tiles = 0,
               bool x_in_fragments = false) {
        if (kernels_->act_type(scalar(type)) == ScalarType::kF32)
            GTEST_SKIP() << "no cooperative matrices: " << device().capabilities().name;
        const auto n_modules = static_cast<uint32_t>(module_n.size());
        uint32_t n = 0, n_rows = 0;
        for (const uint32_t module : module_n) n += module;
        std::vector<StepRow> rows;
        std::vector<int> adapter_of;
        for (const AdapterRun& run : runs) {
            for (uint32_t i = 0; i < run.n_rows; i++) {
                StepRow row{};
                row.adapter_slot = run.adapter < 0 ? kNoSlot : static_cast<uint32_t>(run.adapter);
                rows.push_back(row);
                adapter_of.push_back(run.adapter);
            }
        }
        n_rows = static_cast<uint32_t>(rows.size());
        MatmulPlan plan = *kernels_->products.plan(
            {.n = n, .k = k, .type = scalar(type), .rows = bucket, .max_splits = 8, .adapters = AdapterForm::kRuns});
        if (x_in_fragments) take(plan, {.tile = kFragmentsTile, .k_per_split = padded(k), .x_in_fragments = true});
        if (whole_tiles > 0) plan = with_whole_rows(plan, k, whole_tiles);
        SCOPED_TRACE(::testing::Message() << "rows " << n_rows << " n " << n << " k " << k << " tile " << plan.row_tile
                                          << "x" << plan.column_tile << " splits " << plan.n_splits);
        ASSERT_EQ(plan.adapters, AdapterForm::kRuns);

        const uint32_t n_padded = padded(n), stride = padded(k);
        const auto w = reference::random_values(size_t{n} * k, type, random_);
        const auto x = reference::random_values(size_t{n_rows} * k, type, random_);
        auto low = reference::random_values(size_t{n_rows} * n_modules * kMaxRank, Type::kF32, random_, 3.0f);
        std::vector<std::vector<TestModule>> modules(adapters.size());
        std::vector<LoraModule> table((adapters.size() + 1) * kLoraModules);
        for (size_t a = 0; a < adapters.size(); a++) {
            for (uint32_t m = 0; m < n_modules; m++) {
                modules[a].push_back(
                    TestModule::make(module_n[m], 8, adapters[a].ranks[m], adapters[a].type, 0.5 + double(m), random_));
                table[a * kLoraModules + kLoraQ + m] = modules[a][m].entry();
            }
        }
        auto w_rows = w;
        w_rows.resize(size_t{n_padded} * k);
        auto x_bytes = reference::encode(x, k, stride, type);
        x_bytes.resize(size_t{bucket + kSlackRows} * stride * 2, std::byte{0xff});
        // What lies behind a rank is none of the kernel's business up to the next multiple of 8, where it is zero.
        for (uint32_t t = 0; t < n_rows; t++) {
            for (uint32_t m = 0; m < n_modules; m++) {
                const uint32_t rank = adapter_of[t] < 0 ? 0 : adapters[static_cast<size_t>(adapter_of[t])].ranks[m];
                float* row = &low[(size_t{t} * n_modules + m) * kMaxRank];
                for (uint32_t r = rank; r < kMaxRank; r++) row[r] = r < round_up(rank, 8) ? 0.0f : NAN;
            }
        }
        Buffer w_buffer = input(reference::encode(w_rows, k, stride, type)),
               x_buffer = input(x_in_fragments ? in_fragments(x_bytes, stride, plan.x_order) : x_bytes),
               low_buffer = input(low);
        Buffer table_buffer = input(table), step = step_state(rows, n_rows);
        const size_t split_stride = size_t{round_up(bucket, plan.row_tile)} * n_padded;
        Buffer y = poisoned((plan.n_splits * split_stride + size_t{kSlackRows} * n_padded) * 4);
        ProductArguments arguments{.runs = {.step = step.address(),
                                            .lora_layer = table_buffer.address(),
                                            .low = low_buffer.address(),
                                            .lora_slot_stride = kLoraModules,
                                            .first_module = kLoraQ,
                                            .n_modules = n_modules}};
        MatmulParams& params = arguments.product;
        params.n_rows = step.address();
        params.w = w_buffer.address();
        params.x = x_buffer.address();
        params.y = y.address();
        params.n = n;
        params.k = k;
        params.w_stride = params.x_stride = stride;
        params.y_stride = n_padded;
        params.split_stride = static_cast<uint32_t>(split_stride);
        uint32_t end = 0;
        for (uint32_t m = 0; m < n_modules; m++) arguments.runs.module_end[m] = end += module_n[m];
        execute([&](Recorder& recorder) { kernels_->products.record(recorder, plan, arguments); });

        const auto all = content<float>(y, plan.n_splits * split_stride);
        for (uint32_t t = 0; t < n_rows; t++) {
            std::vector<double> want(n);
            std::vector<float> got(n);
            double magnitude = 0;
            uint32_t column = 0;
            for (uint32_t m = 0; m < n_modules; m++) {
                for (uint32_t i = 0; i < module_n[m]; i++, column++) {
                    for (uint32_t j = 0; j < k; j++)
                        want[column] += double{w[size_t{column} * k + j]} * x[size_t{t} * k + j];
                    if (adapter_of[t] >= 0) {
                        const TestModule& module = modules[static_cast<size_t>(adapter_of[t])][m];
                        for (size_t r = 0; r < module.pair.rank; r++) {
                            want[column] += module.pair.scale * module.b[i * module.pair.rank + r] *
                                            double{low[(size_t{t} * n_modules + m) * kMaxRank + r]};
                        }
                        magnitude = std::max(magnitude,
                                             module.pair.scale * 3 * std::sqrt(static_cast<double>(module.pair.rank)));
                    }
                    for (uint32_t s = 0; s < plan.splits_of(t); s++)
                        got[column] += all[s * split_stride + size_t{t} * n_padded + column];
                }
            }
            // Two parts of 16-bit numbers hold 16 bits (bf16) or more.
            const double parts = adapter_of[t] < 0 ? 0 : 3 * magnitude * std::ldexp(1.0, -16);
            expect_near(want, got.data(), sum_tolerance(k) * std::sqrt(static_cast<double>(k)) + parts, 1.0,
                        "row " + std::to_string(t));
        }
    }
};

TEST_F(MatmulAdapters, AreAddedForEveryTypeAndRank) {
    if (matrix_types().empty()) GTEST_SKIP() << "no cooperative matrices: " << device().capabilities().name;
    for (const Type type : matrix_types()) {
        for (const Type adapter : reference::kTypes) {
            check(type, 320, 192, {192, 64, 64}, {{{16, 5, 40}, adapter}, {{8, 0, 64}, adapter}},
                  {{-1, 3}, {0, 50}, {1, 70}, {0, 1}, {-1, 20}, {1, 30}});
        }
    }
}

TEST_F(MatmulAdapters, OneAdapterForAllRowsOfManyTiles) {
    check(Type::kF16, 640, 512, {448}, {{{16}, Type::kF16}}, {{0, 500}});
    check(Type::kF16, 4096, 256, {256, 256}, {{{21, 130}, Type::kF16}}, {{0, 256}});
}

TEST_F(MatmulAdapters, AreAddedOnceToRowsWhoseKIsWholeAndToOthers) {
    check(Type::kF16, 640, 384, {128}, {{{16}, Type::kF16}, {{8}, Type::kF16}}, {{0, 100}, {-1, 20}, {1, 250}}, 1);
}

TEST_F(MatmulAdapters, AreAddedToSumsOfFragments) {
    kernels_ = must(KernelSet::create(device(), {}));
    if (fragment_types().empty()) GTEST_SKIP() << "no products of fragments: " << device().capabilities().name;
    for (const Type type : fragment_types()) {
        check(type, 320, 256, {192, 64, 64}, {{{16, 5, 40}, Type::kF32}, {{8, 0, 64}, type}},
              {{-1, 3}, {0, 50}, {1, 90}, {0, 1}, {-1, 20}, {1, 30}}, 0, true);
        check(type, 640, 384, {128}, {{{16}, Type::kF16}, {{8}, Type::kF16}}, {{0, 100}, {-1, 20}, {1, 250}}, 1, true);
    }
}

TEST_F(MatmulAdapters, StepsWithoutThemEqualThePlainProduct) {
    check(Type::kF16, 256, 128, {128}, {{{16}, Type::kF16}}, {{-1, 100}});
}

}  // namespace
}  // namespace lorad::gpu::testing::matmul_adapters_test
