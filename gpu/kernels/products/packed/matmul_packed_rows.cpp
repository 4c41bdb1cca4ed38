// Products that read packed weights for up to eight rows, by warps that deal the bricks among them
// (packed_rows_text.h).
#include <algorithm>
#include <bit>

#include "gpu/kernels/products/packed/packed_rows_text.h"
#include "gpu/kernels/products/product_impls.h"
#include "proto/base/format.h"

namespace lorad::gpu::packed_rows_impl {
namespace {

// 16 warps on a multiprocessor: the best of some that were measured on an H200 (docs/lab/packed.md).
constexpr uint32_t kWarps = 4;                                              // of a workgroup
constexpr uint32_t kWorkgroups = 4;                                         // of a multiprocessor
constexpr uint32_t kRingBytes = shared_of_workgroup(kWorkgroups) / kWarps;  // of a warp, at most
static_assert(largest_brick() <= kRingBytes);

uint32_t workgroups_of(const ImplFacts& on) { return on.units() * kWorkgroups; }

const char* refusal(const ImplFacts& on, const Product& product) {
    if (product.rows > kPackedRowsMax) return "it is for up to 8 rows";
    if (!on.ladder().has(RungId::kPackedRows, product.type)) return "the device has no programs for packed weights";
    return packed_program_refusal(on, product);
}

std::optional<MatmulPlan> plan(const ImplFacts& on, const Product& product) {
    MatmulPlan plan = plan_for(MatmulVariant::kPackedRows, product);
    plan.row_tile = kPackedRowsMax;
    plan.column_tile = kBrickRows;
    plan.k_per_split = product.stride();
    // One row is as fast in rows.
    plan.x_in_fragments = product.may_be_in_fragments && product.rows > 1;
    plan.x_order = kBandFragments;
    // Parts whose bricks have other sizes are dealt within the same number of splits.
    plan.n_splits = 1;
    for (uint32_t rest = product.formats; rest != 0; rest &= rest - 1) {
        const uint32_t bricks = bricks_per_row(static_cast<uint32_t>(std::countr_zero(rest)), product.stride());
        plan.n_splits = std::max(plan.n_splits, packed_splits(product.n / kBrickRows, bricks, product.max_splits,
                                                              workgroups_of(on) * kWarps));
    }
    return plan;
}

const char* module(const MatmulPlan& plan) {
    return plan.weight_type == ScalarType::kBf16 ? "matmul_packed_rows_bf16" : "matmul_packed_rows_f16";
}

void record(const ImplRecorder& to, const MatmulPlan& plan, const ProductArguments& arguments) {
    const MatmulParams& params = arguments.product;
    CHECK(params.n % kBrickRows == 0);
    const PackedRowsConstants constants{.threads = kWarps * 32,
                                        .weights = number_of(plan.packed),
                                        .stride = params.w_stride,
                                        .slots = kRingBytes / brick_bytes(number_of(plan.packed)),
                                        .workgroups = kWorkgroups,
                                        .x_in_fragments = plan.x_in_fragments ? 1u : 0u};
    // The parts of a matrix run side by side, each in its share of the workgroups.
    const auto workgroups =
        static_cast<uint32_t>(std::max<uint64_t>(uint64_t{workgroups_of(to)} * params.n / params.y_stride, 1));
    const PackedDeal dealt = deal_bricks(params.n / kBrickRows, bricks_per_row(number_of(plan.packed), params.w_stride),
                                         plan.n_splits, workgroups * kWarps);
    to.dispatch(product_info(module(plan), params, plan), constants, 0,
                PackedParams{.product = params, .deal = dealt, .n_splits = plan.n_splits},
                {ceil_div(dealt.ranges, kWarps)});
}

}  // namespace
}  // namespace lorad::gpu::packed_rows_impl

namespace lorad::gpu {

const char* packed_program_refusal(const ImplFacts& on, const Product& product) {
    if (on.options().batch_invariant) return "it has a cut of k of its own";
    for (uint32_t rest = product.formats; rest != 0; rest &= rest - 1) {
        if (!has_packed_rows(static_cast<WeightFormat>(std::countr_zero(rest))))
            return "there is no program for a format";
    }
    return can_read_bricks(on, product) ? nullptr : "the weights' sizes do not fit it";
}

const ProductImpl kPackedRowsImpl{.variant = MatmulVariant::kPackedRows,
                                  .name = "packed weights by warps",
                                  .forms = {.reads_plain = false, .reads_packed = true, .reads_16_bits = true},
                                  .refusal = packed_rows_impl::refusal,
                                  .plan = packed_rows_impl::plan,
                                  .module = packed_rows_impl::module,
                                  .record = packed_rows_impl::record};

}  // namespace lorad::gpu
