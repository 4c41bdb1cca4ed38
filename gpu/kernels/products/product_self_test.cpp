// At start-up: a small product by each kind of matrices, plain, gated, of x in fragments and with adapters' columns,
// against the portable one.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/ladder_tests.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/products/activation_fragments.h"
#include "gpu/kernels/products/coopmat_tiles.h"
#include "gpu/kernels/products/few_rows/few_row_tiles.h"
#include "gpu/kernels/products/product_impls.h"
#include "gpu/kernels/products/warpgroup_tiles.h"
#include "gpu/kernels/self_test.h"

namespace lorad::gpu {

using namespace self_test;

namespace {

// One small product, run by several plans over the same random data.
struct TestProduct {
    static constexpr uint32_t kN = kTestProductN, kK = kTestProductK, kRows = 20;
    static constexpr uint32_t kBufferRows = round_up(kRows, kSlackRows) + kSlackRows;

    Buffer count, w, x, x_fragments, y, y_fragments, windows;

    static Result<TestProduct> create(Device& device, ScalarType type) {
        TestProduct test;
        TRY(make(device, test.count, 16, MemoryKind::kHostUpload));
        TRY(make(device, test.w, kN * kK * 2, MemoryKind::kHostUpload));
        TRY(make(device, test.x, kBufferRows * kK * 2, MemoryKind::kHostUpload));
        TRY(make(device, test.x_fragments, kBufferRows * kK * 2, MemoryKind::kHostUpload));
        TRY(make(device, test.y, uint64_t{4} * kBufferRows * kN * 4, MemoryKind::kHostReadback));
        TRY(make(device, test.y_fragments, uint64_t{kBufferRows} * kHalf * 2, MemoryKind::kHostReadback));
        TRY(make(device, test.windows, sizeof(StackedWindow), MemoryKind::kHostUpload));
        std::memcpy(test.windows.mapped().data(), &kWindow, sizeof(kWindow));
        std::mt19937 random(20);
        fill_random(test.w.mapped(), type, random);
        fill_random(test.x.mapped(), type, random);
        std::memcpy(test.count.mapped().data(), &kRows, 4);
        return test;
    }

    // x in f32 from now on.
    Status take_f32_rows(Device& device) {
        TRY(make(device, x, kBufferRows * kK * 4, MemoryKind::kHostUpload));
        std::mt19937 random(21);
        fill_random(x.mapped(), ScalarType::kF32, random);
        return ok_status();
    }

    // The sum over splits, rows kRows.
    Result<std::vector<float>> run(Device& device, KernelSet& kernels, const MatmulPlan& plan) {
        MatmulParams params = params_of(kN, plan);
        params.split_stride = kBufferRows * kN;
        TRY(execute(device, kernels,
                    [&](Recorder& recorder) { kernels.products.record(recorder, plan, {.product = params}); }));
        return split_sum(plan.n_splits);
    }

    // Of the first columns of a product, of each row: the greatest sum, the one at the index that is told, and the
    // logarithm of all exponentials' sum.
    static constexpr uint32_t kCounted = kN - 5;
    static std::vector<float> argmax(const std::vector<float>& sums) {
        std::vector<float> all;
        for (uint32_t t = 0; t < kRows; ++t) {
            const std::span row = std::span(sums).subspan(size_t{t} * kN, kCounted);
            const float top = *std::ranges::max_element(row);
            double exponentials = 0;
            for (const float sum : row) exponentials += std::exp(static_cast<double>(sum) - top);
            all.insert(all.end(), {top, top, top + static_cast<float>(std::log(exponentials))});
        }
        return all;
    }
    Result<std::vector<float>> run_argmax(Device& device, KernelSet& kernels, const MatmulPlan& plan,
                                          const std::vector<float>& sums) {
        MatmulParams params = params_of(kN, plan);
        params.n = kCounted;
        TRY(execute(device, kernels, [&](Recorder& recorder) {
            kernels.products.record(recorder, plan, {.product = params, .partials = y.address()});
        }));
        const uint32_t n_parts = plan.column_tiles(kCounted);
        std::vector<float> all;
        for (uint32_t t = 0; t < kRows; ++t) {
            const std::span parts(reinterpret_cast<const SamplePart*>(y.mapped().data()) + size_t{t} * n_parts,
                                  n_parts);
            const SamplePart& best = *std::ranges::max_element(parts, {}, &SamplePart::top);
            double exponentials = 0;
            for (const SamplePart& part : parts)
                exponentials += part.sum * std::exp(static_cast<double>(part.top) - best.top);
            const bool is_there = best.index < kCounted &&
                                  std::ranges::all_of(parts, [](const SamplePart& part) { return part.finite == 1; });
            all.insert(all.end(), {best.top, is_there ? sums[size_t{t} * kN + best.index] : NAN,
                                   best.top + static_cast<float>(std::log(exponentials))});
        }
        return all;
    }

    // Of a stacked product x and w once more stand for low and b, of which this window is taken: without more data some
    // of k counts twice.
    static constexpr StackedWindow kWindow{3, 4};
    // What that is worth. The plan takes x in rows, and all of k at once.
    Result<std::vector<float>> run_window(Device& device, KernelSet& kernels, MatmulPlan plan) {
        MatmulParams params = params_of(kN, plan);
        params.x += uint64_t{kWindow.begin} * kStackedStep * 2;
        params.w += uint64_t{kWindow.begin} * kStackedStep * 2;
        params.k = plan.k_per_split = kWindow.n * kStackedStep;
        TRY(execute(device, kernels,
                    [&](Recorder& recorder) { kernels.products.record(recorder, plan, {.product = params}); }));
        return split_sum(1);
    }
    Result<std::vector<float>> run_stacked(Device& device, KernelSet& kernels, const MatmulPlan& plan) {
        ProductArguments arguments{.product = params_of(kN, plan), .stacked = stacked()};
        arguments.product.split_stride = kBufferRows * kN;
        TRY(execute(device, kernels, [&](Recorder& recorder) { kernels.products.record(recorder, plan, arguments); }));
        return split_sum(plan.n_splits);
    }
    Result<std::vector<float>> run_gated_stacked(Device& device, KernelSet& kernels, const MatmulPlan& plan) {
        ProductArguments arguments{
            .product = params_of(kHalf, plan), .y_order = kFragmentsByRows, .stacked = stacked()};
        arguments.product.y = 0;
        arguments.product.y_fragments = y_fragments.address();
        TRY(execute(device, kernels, [&](Recorder& recorder) { kernels.products.record(recorder, plan, arguments); }));
        return act_of(plan, kFragmentsByRows);
    }

    static constexpr uint32_t kHalf = kN / 2;
    // SiLU of the first half of a result's columns, times the second half.
    static std::vector<float> gated(const std::vector<float>& sums) {
        std::vector<float> act(size_t{kRows} * kHalf);
        for (uint32_t t = 0; t < kRows; ++t) {
            for (uint32_t f = 0; f < kHalf; ++f) {
                const float gate = sums[size_t{t} * kN + f], up = sums[size_t{t} * kN + kHalf + f];
                act[size_t{t} * kHalf + f] = gate / (1.0f + std::exp(-gate)) * up;
            }
        }
        return act;
    }

    // That, rows kRows, computed by the product itself; in fragments if x is, in this order.
    Result<std::vector<float>> run_gated(Device& device, KernelSet& kernels, const MatmulPlan& plan,
                                         uint32_t y_order = kFragmentsByColumns) {
        MatmulParams params = params_of(kHalf, plan);
        if (plan.x_in_fragments) {
            params.y = 0;
            params.y_fragments = y_fragments.address();
        }
        TRY(execute(device, kernels, [&](Recorder& recorder) {
            kernels.products.record(recorder, plan, {.product = params, .y_order = y_order});
        }));
        return act_of(plan, y_order);
    }

  private:
    std::optional<uint32_t> arranged_;  // the order that x_fragments has

    std::vector<float> split_sum(uint32_t n_splits) const {
        std::vector<float> sum(size_t{kRows} * kN);
        const auto* values = reinterpret_cast<const float*>(y.mapped().data());
        for (uint32_t split = 0; split < n_splits; ++split) {
            for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[size_t{split} * kBufferRows * kN + i];
        }
        return sum;
    }
    std::vector<float> act_of(const MatmulPlan& plan, uint32_t y_order) const {
        std::vector<float> act(size_t{kRows} * kHalf);
        const std::byte* got = (plan.x_in_fragments ? y_fragments : y).mapped().data();
        for (uint32_t i = 0; i < act.size(); ++i) {
            uint16_t bits = 0;
            std::memcpy(
                &bits,
                got + (plan.x_in_fragments ? fragment_offset(i / kHalf, i % kHalf, kHalf, y_order) : uint64_t{i} * 2),
                2);
            act[i] = decode16(bits, plan.act_type);
        }
        return act;
    }

    // With params_of(), by which x_fragments is arranged.
    StackedAdapters stacked() const {
        return {.windows = windows.address(), .b = w.address(), .low = x_fragments.address(), .columns = kK};
    }

    // n: columns of the result.
    MatmulParams params_of(uint32_t n, const MatmulPlan& plan) {
        if (plan.x_in_fragments && arranged_ != plan.x_order) {
            to_fragments(x.mapped(), x_fragments.mapped(), kK, plan.x_order);
            arranged_ = plan.x_order;
        }
        MatmulParams params{};
        params.n_rows = count.address();
        params.w = w.address();
        params.x = (plan.x_in_fragments ? x_fragments : x).address();
        params.y = y.address();
        params.n = params.y_stride = n;
        params.k = params.w_stride = params.x_stride = kK;
        return params;
    }

    template <typename Record>
    Status execute(Device& device, KernelSet& kernels, Record record) {
        std::memset(y.mapped().data(), 0xff, y.size());
        std::memset(y_fragments.mapped().data(), 0xff, y_fragments.size());
        TRY_ASSIGN(Recorder recorder, Recorder::begin(device));
        record(recorder);
        TRY(kernels.status());
        return submit_and_wait(device, std::move(recorder));
    }
};

Product test_product(ScalarType type, ProductResult result = ProductResult::kSums) {
    return {.n = TestProduct::kN,
            .k = TestProduct::kK,
            .type = type,
            .rows = TestProduct::kRows,
            .max_splits = 4,
            .result = result};
}

// What others are compared with, of x in f32.
MatmulPlan tiled_plan(ScalarType type) {
    MatmulPlan plan = plan_for(MatmulVariant::kTiled, test_product(type));
    plan.k_per_split = TestProduct::kK;
    plan.row_tile = 32;
    plan.column_tile = 64;
    return plan;
}

// Products are exact in f32 and only the order of 512 sums differs; a wrong element costs more than this.
constexpr double kSelfTestTolerance = 1e-5;
// Short sums round a few times by 2^-11, of what is as often positive as negative.
constexpr double kShortSumTolerance = 2e-3;
// Results are rounded to 8 bits (bf16) or more.
constexpr double kGatedTolerance = 4e-3;
struct GatedStep {
    uint32_t rows, ffn;
};
constexpr uint32_t kLargeFfn = 18944, kLargeHidden = 3584;
constexpr std::array kGatedTestSteps = {GatedStep{16, TestProduct::kHalf}, GatedStep{64, TestProduct::kHalf},
                                        GatedStep{96, TestProduct::kHalf}, GatedStep{128, TestProduct::kHalf},
                                        GatedStep{16, kLargeFfn},          GatedStep{32, kLargeFfn}};

// Of the product and the gated product of x in fragments, where it is not allowed.
std::optional<Deviation> fragment_deviation(Device& device, KernelSet& kernels, TestProduct& test, ScalarType type,
                                            const std::vector<float>& want) {
    MatmulPlan plan = plan_for(MatmulVariant::kCoopmat, test_product(type));
    take(plan, {.tile = kFragmentsTile, .k_per_split = TestProduct::kK, .x_in_fragments = true});
    Deviation plain, gated;
    plain.add(test.run(device, kernels, plan), want);
    if (!(plain.error <= kSelfTestTolerance)) return plain;
    plan.result = ProductResult::kGated;
    gated.add(test.run_gated(device, kernels, plan), TestProduct::gated(want));
    if (!(gated.error <= kGatedTolerance)) return gated;
    return std::nullopt;
}

// Of all tiles, with k whole and cut, and of their gated products, where it is not allowed.
std::optional<Deviation> warpgroup_deviation(Device& device, KernelSet& kernels, TestProduct& test, ScalarType type,
                                             const std::vector<float>& want) {
    for (uint32_t tile = 0; tile < kWarpgroupTiles.size(); ++tile) {
        for (const uint32_t n_splits : {1u, 2u}) {
            Deviation plain;
            plain.add(test.run(device, kernels,
                               warpgroup_plan(tile, test_product(type), n_splits, TestProduct::kK / n_splits)),
                      want);
            if (!(plain.error <= kSelfTestTolerance)) return plain;
        }
        if (!kWarpgroupTiles[tile].may_gate()) continue;
        for (const uint32_t y_order : {kFragmentsByRows, kRowFragments}) {
            // nobody reads so many rows in it
            if (y_order == kRowFragments && kWarpgroupTiles[tile].groups > 1) continue;
            Deviation gated;
            gated.add(test.run_gated(
                          device, kernels,
                          warpgroup_plan(tile, test_product(type, ProductResult::kGated), 1, TestProduct::kK), y_order),
                      TestProduct::gated(want));
            if (!(gated.error <= kGatedTolerance)) return gated;
        }
    }
    return std::nullopt;
}

// Of all tiles that say rows' greatest sums, where it is not allowed.
std::optional<Deviation> argmax_deviation(Device& device, KernelSet& kernels, TestProduct& test, ScalarType type,
                                          const std::vector<float>& want) {
    for (uint32_t tile = 0; tile < kWarpgroupTiles.size(); ++tile) {
        Deviation deviation;
        const Product product = test_product(type, ProductResult::kGreatest);
        deviation.add(test.run_argmax(device, kernels, warpgroup_plan(tile, product, 1, TestProduct::kK), want),
                      TestProduct::argmax(want));
        if (!(deviation.error <= kSelfTestTolerance)) return deviation;
    }
    return std::nullopt;
}

// Of the tiles that take adapters as more k, plain with k cut and gated, where it is not allowed.
std::optional<Deviation> stacked_deviation(Device& device, KernelSet& kernels, TestProduct& test, ScalarType type,
                                           const MatmulPlan& portable, std::vector<float> want) {
    const Result<std::vector<float>> more = test.run_window(device, kernels, portable);
    Deviation failed;
    failed.add(more, want);
    if (!more.ok()) return failed;
    for (size_t i = 0; i < want.size(); ++i) want[i] += more.value()[i];
    for (uint32_t tile = 0; tile < kWarpgroupTiles.size(); ++tile) {
        if (kWarpgroupTiles[tile].rows() != kStackedTileRows) continue;
        Deviation plain;
        Product product = test_product(type);
        product.adapters = AdapterForm::kStacked;
        plain.add(test.run_stacked(device, kernels, warpgroup_plan(tile, product, 2, TestProduct::kK / 2)), want);
        if (!(plain.error <= kSelfTestTolerance)) return plain;
        if (!kWarpgroupTiles[tile].may_gate()) continue;
        Deviation gated;
        product.result = ProductResult::kGated;
        gated.add(test.run_gated_stacked(device, kernels, warpgroup_plan(tile, product, 1, TestProduct::kK)),
                  TestProduct::gated(want));
        if (!(gated.error <= kGatedTolerance)) return gated;
    }
    return std::nullopt;
}

// Of workgroups with one, two and three groups, the last one with warps that have no rows, in the sizes of x that it is
// for, with k whole and cut, where it is not allowed.
std::optional<Deviation> direct_deviation(Device& device, KernelSet& kernels, TestProduct& test, ScalarType type,
                                          const std::vector<float>& want) {
    struct Form {
        uint32_t column_blocks, rows, n_splits;
    };
    for (const Form& form : {Form{3, 48, 1}, Form{7, 64, 2}, Form{9, 64, 4}}) {
        Deviation deviation;
        Product product = test_product(type);
        product.rows = form.rows;
        deviation.add(
            test.run(device, kernels,
                     direct_plan(form.column_blocks, product, form.n_splits, TestProduct::kK / form.n_splits)),
            want);
        if (!(deviation.error <= kSelfTestTolerance)) return deviation;
    }
    return std::nullopt;
}

}  // namespace

// Of all that multiplies this product.
Status test_products(LadderTests& tests, ScalarType type) {
    Device& device = tests.device();
    KernelSet& kernels = tests.kernels();
    KernelLadder& ladder = tests.ladder();
    TRY_ASSIGN(TestProduct test, TestProduct::create(device, type));
    MatmulPlan portable = tiled_plan(type);
    portable.act_type = type;
    TRY_ASSIGN(const std::vector<float> want, test.run(device, kernels, portable));
    for (const MatmulVariant variant : {MatmulVariant::kGemv, MatmulVariant::kCoopmat, MatmulVariant::kCoopmat2}) {
        if (variant == MatmulVariant::kCoopmat2 && !ladder.has(RungId::kMatrices2, type)) continue;
        const MatmulPlan plan = *kernels.products.plan_by(variant, test_product(type));
        Deviation deviation;
        deviation.add(test.run(device, kernels, plan), want);
        if (deviation.error <= kSelfTestTolerance) continue;
        const bool is_of_both = variant != MatmulVariant::kCoopmat2;
        tests.leave_out(is_of_both ? RungId::kMatrices : RungId::kMatrices2, type, variant_name(plan), deviation);
        if (is_of_both) break;
    }
    // The tiles that steps of so many rows take in a small and in a large model, though the test has fewer rows and
    // columns.
    std::vector<uint32_t> tested;
    for (const auto& [rows, ffn] : kGatedTestSteps) {
        if (!ladder.has(RungId::kGated, type)) break;
        const GatedProducts wanted_gated = std::exchange(tests.options().gated, GatedProducts::kAlways);
        std::optional<MatmulPlan> plan = kernels.products.plan(
            {.n = 2 * ffn, .k = TestProduct::kK, .type = type, .rows = rows, .result = ProductResult::kGated});
        tests.options().gated = wanted_gated;
        if (!plan || std::ranges::find(tested, plan->tile) != tested.end()) continue;
        tested.push_back(plan->tile);
        plan->rows = TestProduct::kRows;
        Deviation deviation;
        deviation.add(test.run_gated(device, kernels, *plan), TestProduct::gated(want));
        if (deviation.error <= kGatedTolerance) continue;
        tests.leave_out(RungId::kGated, type, "matmul_coopmat_gated", deviation);
    }
    if (tested.empty()) ladder.drop(RungId::kGated, type);
    const auto show = [&](RungId rung, const char* kernel, auto&& compare) {
        if (!ladder.has(rung, type)) return;
        if (const std::optional<Deviation> deviation = compare()) tests.leave_out(rung, type, kernel, *deviation);
    };
    show(RungId::kWarpgroups, "matmul_warpgroup",
         [&] { return warpgroup_deviation(device, kernels, test, type, want); });
    show(RungId::kStacked, "matmul_warpgroup_stacked",
         [&] { return stacked_deviation(device, kernels, test, type, portable, want); });
    show(RungId::kArgmax, "matmul_warpgroup_argmax",
         [&] { return argmax_deviation(device, kernels, test, type, want); });
    show(RungId::kDirect, "matmul_warpgroup_direct",
         [&] { return direct_deviation(device, kernels, test, type, want); });
    if (ladder.has(RungId::kFragments, type)) {
        if (const auto deviation = fragment_deviation(device, kernels, test, type, want))
            tests.leave_out_by_lanes(RungId::kFragments, type, "matmul_coopmat with x in blocks", *deviation);
    }
    return ok_status();
}

namespace {

// Of the tiles that steps of so many rows take in a large model, where it is not allowed.
std::optional<Deviation> registers_deviation(Device& device, KernelSet& kernels, TestProduct& test,
                                             const std::vector<float>& want) {
    std::vector<uint32_t> tested;
    for (const uint32_t rows : {8u, 16u, 64u, 2048u}) {
        MatmulPlan plan = *kernels.products.plan({.n = 2 * kLargeFfn, .k = kLargeHidden, .rows = rows});
        const bool is_stream = plan.variant == MatmulVariant::kStream;
        if (!is_stream && plan.variant != MatmulVariant::kRegisters) continue;
        const uint32_t form = plan.tile + (is_stream ? kStreamForm : 0);
        if (std::ranges::find(tested, form) != tested.end()) continue;
        tested.push_back(form);
        plan.rows = TestProduct::kRows;
        plan.n_splits = 2;
        plan.k_per_split = TestProduct::kK / 2;
        Deviation deviation;
        deviation.add(test.run(device, kernels, plan), want);
        if (!(deviation.error <= (plan.short_sum != 0 ? kShortSumTolerance : kSelfTestTolerance))) return deviation;
    }
    return std::nullopt;
}

}  // namespace

// Where a device has nothing better. Software devices take long to compile it: there the tests show it.
Status test_registers(LadderTests& tests, ScalarType type) {
    Device& device = tests.device();
    KernelLadder& ladder = tests.ladder();
    if (device.capabilities().is_cpu) return ok_status();
    TRY_ASSIGN(TestProduct test, TestProduct::create(device, ScalarType::kF16));
    TRY(test.take_f32_rows(device));
    TRY_ASSIGN(const std::vector<float> want, test.run(device, tests.kernels(), tiled_plan(ScalarType::kF16)));
    const auto show = [&](RungId rung, const char* module) {
        if (!ladder.has(rung)) return;
        const auto deviation = registers_deviation(device, tests.kernels(), test, want);
        if (deviation) tests.leave_out(rung, type, module, *deviation);
    };
    show(RungId::kShortSums, "matmul_registers_f16");
    const bool has_short_sums = ladder.has(RungId::kShortSums);
    ladder.drop(RungId::kShortSums);  // what is below it is next
    show(RungId::kRegisters, "matmul_registers");
    if (has_short_sums && ladder.has(RungId::kRegisters)) ladder.add(RungId::kShortSums);
    return ok_status();
}

Status self_test::keep_forms_that_work(Device& device, KernelSet& kernels, ScalarType type,
                                       std::vector<ProductForm>& forms, const std::function<bool()>& has_time) {
    TRY_ASSIGN(TestProduct test, TestProduct::create(device, type));
    TRY(test.take_f32_rows(device));
    TRY_ASSIGN(const std::vector<float> want, test.run(device, kernels, tiled_plan(type)));
    std::vector<ProductForm> working;
    for (const ProductForm& form : forms) {
        if (!has_time()) break;
        const MatmulPlan plan = *kernels.products.plan_by_form(test_product(type), form);
        Deviation deviation;
        const Result<std::vector<float>> got = test.run(device, kernels, plan);
        if (!got.ok() && got.error().code == ErrorCode::kDeviceLost) return got.error();
        deviation.add(got, want);
        if (deviation.error <= (form.short_sum != 0 ? kShortSumTolerance : kSelfTestTolerance))
            working.push_back(form);
        else
            tell_left_out(describe(form), device, deviation);
    }
    forms = std::move(working);
    return ok_status();
}

}  // namespace lorad::gpu
