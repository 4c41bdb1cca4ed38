// Products that read packed weights for 9 to 128 rows by the matrices of warpgroups (packed_warpgroup_text.h).
#include <algorithm>
#include <bit>
#include <limits>

#include "gpu/kernels/products/packed/packed_rows_text.h"
#include "gpu/kernels/products/packed/packed_warpgroup_text.h"
#include "gpu/kernels/products/product_impls.h"
#include "proto/base/format.h"

namespace lorad::gpu::packed_warpgroup_impl {
namespace {

const char* refusal(const ImplFacts& on, const Product& product) {
    if (product.rows <= kPackedRowsMax || product.rows > kPackedWarpgroupRowsMax) return "it is for 9 to 128 rows";
    if (!on.ladder().has(RungId::kPackedWarpgroups, product.type))
        return "the device has no programs for packed weights on warpgroups";
    if (product.stride() % kPackedUnitColumns != 0) return "rows end within what it takes at once";
    return packed_program_refusal(on, product);
}

// The splits with the least time, in times of a unit of all multiprocessors: those of the longest range, and those of
// the sums, 8 bytes an element, written and read, in the L2 cache, which moves twice as many bytes in a second as
// memory.
uint32_t splits_for(const Product& product, WeightFormat format, uint32_t multiprocessors) {
    const uint32_t tiles = ceil_div(product.n, kPackedWarps * kBrickRows);
    const uint32_t units = product.stride() / kPackedUnitColumns;
    const double unit_bytes = static_cast<double>(bytes_of(format, product.n, product.k)) / (tiles * units);
    // Of a tile of rows.
    const uint32_t at_once = std::max(multiprocessors / ceil_div(product.rows, kMatrixFragmentRows), 1u);
    const double sums = 4.0 * product.rows * product.n / (unit_bytes * multiprocessors);
    double least = std::numeric_limits<double>::infinity();
    uint32_t best = 1;
    for (uint32_t n_splits = 1; n_splits <= product.max_splits; ++n_splits) {
        const double cost = deal_bricks(tiles, units, n_splits, at_once).longest() + n_splits * sums;
        if (cost >= least) continue;
        least = cost;
        best = n_splits;
    }
    return best;
}

std::optional<MatmulPlan> plan(const ImplFacts& on, const Product& product) {
    MatmulPlan plan = plan_for(MatmulVariant::kPackedWarpgroup, product);
    plan.row_tile = std::min(round_up(product.rows, kFragmentRows), kMatrixFragmentRows);
    plan.column_tile = kPackedWarps * kBrickRows;
    plan.k_per_split = product.stride();
    plan.x_in_fragments = true;
    plan.x_order = kMatrixFragments;
    // Parts of other formats are dealt within the same number of splits.
    for (uint32_t rest = product.formats; rest != 0; rest &= rest - 1)
        plan.n_splits =
            std::max(plan.n_splits, splits_for(product, static_cast<WeightFormat>(std::countr_zero(rest)), on.units()));
    return plan;
}

const char* module(const MatmulPlan& plan) {
    return plan.weight_type == ScalarType::kBf16 ? "matmul_packed_warpgroup_bf16" : "matmul_packed_warpgroup_f16";
}

std::string describe_tile(const MatmulPlan& plan) {
    return lorad::format("packed weights by warpgroups, {} rows", plan.row_tile);
}

void record(const ImplRecorder& to, const MatmulPlan& plan, const ProductArguments& arguments) {
    const MatmulParams& params = arguments.product;
    CHECK(params.n % kBrickRows == 0 && plan.x_order == kMatrixFragments);
    const PackedWarpgroupConstants constants{.threads = kPackedWarps * 32,
                                             .weights = number_of(plan.packed),
                                             .stride = params.w_stride,
                                             .row_blocks = plan.row_tile / kFragmentRows};
    // The parts of a matrix, and tiles of rows, run side by side, each in its share of the multiprocessors.
    const uint32_t row_tiles = ceil_div(plan.rows, plan.row_tile);
    const auto workgroups =
        static_cast<uint32_t>(std::max<uint64_t>(uint64_t{to.units()} * params.n / params.y_stride / row_tiles, 1));
    const PackedDeal dealt = deal_bricks(ceil_div(params.n, plan.column_tile), params.w_stride / kPackedUnitColumns,
                                         plan.n_splits, workgroups);
    to.dispatch(product_info(module(plan), params, plan), constants, 0,
                PackedParams{.product = params, .deal = dealt, .n_splits = plan.n_splits}, {dealt.ranges, row_tiles});
}

}  // namespace
}  // namespace lorad::gpu::packed_warpgroup_impl

namespace lorad::gpu {

const ProductImpl kPackedWarpgroupImpl{
    .variant = MatmulVariant::kPackedWarpgroup,
    .name = "packed weights by warpgroups",
    .forms = {.reads_plain = false, .reads_packed = true, .reads_16_bits = true, .needs_fragments = true},
    .refusal = packed_warpgroup_impl::refusal,
    .plan = packed_warpgroup_impl::plan,
    .module = packed_warpgroup_impl::module,
    .record = packed_warpgroup_impl::record,
    .describe = packed_warpgroup_impl::describe_tile};

}  // namespace lorad::gpu
