// Products by warpgroups with w straight in registers (warpgroup_direct_text.h), of few rows and large matrices.
#include "gpu/kernels/products/activation_fragments.h"
#include "gpu/kernels/products/product_impls.h"
#include "gpu/kernels/products/warpgroup_direct_text.h"
#include "gpu/kernels/products/warpgroup_tiles.h"
#include "proto/base/format.h"

namespace lorad::gpu::direct_impl {
namespace {

constexpr uint32_t kRowsMin = 33;
constexpr uint64_t kBytesMin = 16 << 20;  // of the matrix; smaller ones were not measured

const char* refusal(const ImplFacts& on, const Product& product) {
    if (product.rows < kRowsMin || product.rows > kDirectRowsMax) return "it is for 33 to 64 rows";
    if (uint64_t{padded(product.n)} * product.stride() * 2 < kBytesMin) return "it is for matrices from 16 MiB on";
    return on.ladder().has(RungId::kDirect, product.type) && !on.options().batch_invariant
               ? nullptr
               : "the device has no warpgroups with w in registers";
}

std::optional<MatmulPlan> plan(const ImplFacts& on, const Product& product) {
    const DirectChoice choice = choose_direct({.n = padded(product.n),
                                               .stride = product.stride(),
                                               .rows = product.rows,
                                               .max_splits = product.max_splits,
                                               .multiprocessors = on.units(),
                                               .leaves_room = product.leaves_room});
    if (choice.k_per_split == 0) return std::nullopt;
    return direct_plan(choice.column_blocks, product, choice.n_splits, choice.k_per_split);
}

const char* module(const MatmulPlan& plan) {
    return plan.weight_type == ScalarType::kBf16 ? "matmul_warpgroup_direct_bf16" : "matmul_warpgroup_direct_f16";
}

std::string describe_tile(const MatmulPlan& plan) {
    return lorad::format("warpgroup direct {}x{}", plan.row_tile, plan.column_tile);
}

void record(const ImplRecorder& to, const MatmulPlan& plan, const ProductArguments& arguments) {
    const MatmulParams& params = arguments.product;
    const DirectProgram program{.column_blocks = plan.column_tile / kDirectColumnBlock,
                                .row_blocks = plan.row_tile / kFragmentRows};
    const DirectConstants constants{.threads = program.threads(),
                                    .column_blocks = program.column_blocks,
                                    .stride = params.w_stride,
                                    .row_blocks = program.row_blocks};
    to.dispatch(product_info(module(plan), params, plan), constants, 0, MatmulDirectParams{params, arguments.prefetch},
                {1, plan.n_splits, ceil_div(params.y_stride, plan.column_tile)});
}

void candidates(const ImplFacts& on, const Product& product, std::vector<MatmulPlan>& all) {
    if (refusal(on, product) != nullptr) return;
    if (const std::optional<MatmulPlan> best = plan(on, product)) all.push_back(*best);
}

}  // namespace
}  // namespace lorad::gpu::direct_impl

namespace lorad::gpu {

MatmulPlan direct_plan(uint32_t column_blocks, const Product& product, uint32_t n_splits, uint32_t k_per_split) {
    MatmulPlan plan = plan_for(MatmulVariant::kWarpgroupDirect, product);
    plan.n_splits = n_splits;
    plan.k_per_split = k_per_split;
    plan.row_tile = round_up(product.rows, kFragmentRows);
    plan.column_tile = column_blocks * kDirectColumnBlock;
    plan.x_in_fragments = true;
    plan.x_order = kRowFragments;
    return plan;
}

const ProductImpl kDirectImpl{.variant = MatmulVariant::kWarpgroupDirect,
                              .name = "warpgroups, w in registers",
                              .forms = {.reads_16_bits = true, .needs_fragments = true},
                              .refusal = direct_impl::refusal,
                              .plan = direct_impl::plan,
                              .module = direct_impl::module,
                              .record = direct_impl::record,
                              .describe = direct_impl::describe_tile,
                              .candidates = direct_impl::candidates};

}  // namespace lorad::gpu
