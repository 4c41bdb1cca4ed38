// At start-up: a small product of packed weights in each of the model's formats on matrices, against the portable one.
#include <cstring>
#include <random>
#include <vector>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/ladder_tests.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/products/packed/packed_rows_text.h"
#include "gpu/kernels/products/packed/packed_tiles.h"
#include "gpu/kernels/products/packed/packed_warpgroup_text.h"
#include "gpu/kernels/random_bricks.h"
#include "gpu/kernels/self_test.h"
#include "proto/base/format.h"

namespace lorad::gpu {

using namespace self_test;

namespace packed_test {

constexpr uint32_t kN = 176;  // the last workgroup has bands that there are not
// The last split has fewer steps, and bricks of 256 columns end beyond the matrix.
constexpr uint32_t kK = 640;
constexpr uint32_t kWholeK = 768;  // for programs that take whole bricks alone
constexpr uint32_t kBufferRows = 128 + kSlackRows;

struct PackedProduct {
    uint32_t k;
    Buffer count, w, x, x_fragments, y;

    static Result<PackedProduct> create(Device& device, WeightFormat format, ScalarType type, uint32_t k = kK) {
        PackedProduct test{.k = k};
        TRY(make(device, test.count, 16, MemoryKind::kHostUpload));
        TRY(make(device, test.w, kPartAlign + bytes_of(format, kN, k), MemoryKind::kHostUpload));
        TRY(make(device, test.x, uint64_t{kBufferRows} * k * 2, MemoryKind::kHostUpload));
        TRY(make(device, test.y, uint64_t{4} * kBufferRows * padded(kN) * 4, MemoryKind::kHostReadback));
        std::mt19937 random(54);
        fill_part(format, test.w.mapped(), random);
        fill_random(test.x.mapped(), type, random);
        TRY(make(device, test.x_fragments, test.x.size(), MemoryKind::kHostUpload));
        return test;
    }

    // The sum over splits, of `rows` rows.
    Result<std::vector<float>> run(Device& device, KernelSet& kernels, const MatmulPlan& plan) {
        std::memcpy(count.mapped().data(), &plan.rows, sizeof plan.rows);
        std::memset(y.mapped().data(), 0xff, y.size());
        if (plan.x_in_fragments) to_fragments(x.mapped(), x_fragments.mapped(), k, plan.x_order);
        MatmulParams params{};
        params.n_rows = count.address();
        params.w = w.address() + kPartAlign;
        params.x = (plan.x_in_fragments ? x_fragments : x).address();
        params.y = y.address();
        params.n = kN;
        params.y_stride = padded(kN);
        params.k = params.w_stride = params.x_stride = k;
        params.split_stride = kBufferRows * padded(kN);
        TRY_ASSIGN(Recorder recorder, Recorder::begin(device));
        kernels.products.record(recorder, plan, {.product = params});
        TRY(kernels.status());
        TRY(submit_and_wait(device, std::move(recorder)));
        const auto* values = reinterpret_cast<const float*>(y.mapped().data());
        std::vector<float> sums(size_t{plan.rows} * kN);
        for (size_t i = 0; i < sums.size(); ++i) {
            for (uint32_t split = 0; split < plan.n_splits; ++split)
                sums[i] += values[(size_t{split} * kBufferRows + i / kN) * padded(kN) + i % kN];
        }
        return sums;
    }
};

// Weights and, of integer codes, their scales and minima are rounded to the type: 2^-11 or 2^-8 each. A wrong element
// costs more.
double tolerance_of(ScalarType type) { return type == ScalarType::kF16 ? 2e-3 : 1.6e-2; }

Product product_of(WeightFormat format, ScalarType type, uint32_t rows, uint32_t k = kK) {
    return {.n = kN, .k = k, .type = type, .formats = 1u << number_of(format), .align = kBrickRows, .rows = rows};
}

// Of the plan's product beside the portable kernel's.
Result<Deviation> deviation_of(LadderTests& tests, PackedProduct& test, const MatmulPlan& plan) {
    MatmulPlan portable = plan;
    portable.variant = MatmulVariant::kTiled;
    portable.row_tile = 16;
    portable.column_tile = 64;
    portable.n_splits = 1;
    portable.k_per_split = test.k;
    portable.x_in_fragments = false;
    TRY_ASSIGN(const std::vector<float> want, test.run(tests.device(), tests.kernels(), portable));
    Deviation deviation;
    deviation.add(test.run(tests.device(), tests.kernels(), plan), want);
    return deviation;
}

// The formats of the model.
std::vector<WeightFormat> formats_of(LadderTests& tests) {
    std::vector<WeightFormat> all;
    for (uint32_t number = kWeightsQ8_0; number < kWeightFormats; ++number) {
        const auto format = static_cast<WeightFormat>(number);
        if ((tests.options().packed_formats >> number & 1u) != 0 && is_for_matrices(format)) all.push_back(format);
    }
    return all;
}

}  // namespace packed_test

Status test_packed(LadderTests& tests, ScalarType type) {
    using namespace packed_test;
    for (const WeightFormat format : formats_of(tests)) {
        TRY_ASSIGN(PackedProduct test, PackedProduct::create(tests.device(), format, type));
        for (const PackedTile& tile : kPackedTiles) {
            MatmulPlan plan =
                *tests.kernels().products.plan_by(MatmulVariant::kPacked, product_of(format, type, tile.rows - 3));
            plan.n_splits = 2;
            plan.k_per_split = kK / 5 * 3;
            TRY_ASSIGN(const Deviation deviation, deviation_of(tests, test, plan));
            if (deviation.error <= tolerance_of(type)) continue;
            tests.leave_out_by_lanes(RungId::kPacked, type,
                                     lorad::format("matmul_packed of {} by {} rows", name_of(format), tile.rows),
                                     deviation);
            return ok_status();
        }
    }
    return ok_status();
}

// All numbers of rows that programs are made for; tiles that workgroups share, or all of k in one split.
Status test_packed_warpgroups(LadderTests& tests, ScalarType type) {
    using namespace packed_test;
    for (const WeightFormat format : formats_of(tests)) {
        if (!has_packed_rows(format)) continue;
        TRY_ASSIGN(PackedProduct test, PackedProduct::create(tests.device(), format, type, kWholeK));
        for (const uint32_t rows : {16u, 32u, 48u, 64u, 96u}) {
            Product product = product_of(format, type, rows - 3, kWholeK);
            product.max_splits = rows / kFragmentRows % 2 == 0 ? 4 : 1;
            product.may_be_in_fragments = true;
            MatmulPlan plan = *tests.kernels().products.plan_by(MatmulVariant::kPackedWarpgroup, product);
            plan.n_splits = product.max_splits;
            TRY_ASSIGN(const Deviation deviation, deviation_of(tests, test, plan));
            if (deviation.error <= tolerance_of(type)) continue;
            tests.leave_out(RungId::kPackedWarpgroups, type,
                            lorad::format("matmul_packed_warpgroup of {} by {} rows", name_of(format), rows),
                            deviation);
            return ok_status();
        }
    }
    return ok_status();
}

// Bands that two warps share, of which a warp has several, and x in rows; whole bands and x in fragments.
Status test_packed_rows(LadderTests& tests, ScalarType type) {
    using namespace packed_test;
    for (const WeightFormat format : formats_of(tests)) {
        if (!has_packed_rows(format)) continue;
        TRY_ASSIGN(PackedProduct test, PackedProduct::create(tests.device(), format, type));
        for (const bool in_fragments : {false, true}) {
            Product product = product_of(format, type, in_fragments ? kPackedRowsMax : kPackedRowsMax - 3);
            product.max_splits = in_fragments ? 1 : 2;
            product.may_be_in_fragments = in_fragments;
            const MatmulPlan plan = *tests.kernels().products.plan_by(MatmulVariant::kPackedRows, product);
            TRY_ASSIGN(const Deviation deviation, deviation_of(tests, test, plan));
            if (deviation.error <= tolerance_of(type)) continue;
            tests.leave_out(RungId::kPackedRows, type, lorad::format("matmul_packed_rows of {}", name_of(format)),
                            deviation);
            return ok_status();
        }
    }
    return ok_status();
}

}  // namespace lorad::gpu
