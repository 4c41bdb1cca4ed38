// One row without matrix units, by plain weights: sums, or what comes behind them in the same dispatch
// (matmul_row.comp), so that a layer has three dispatches less.
#include <algorithm>

#include "gpu/kernels/products/few_rows/few_row_tiles.h"
#include "gpu/kernels/products/few_rows/matmul_row.params.h"
#include "gpu/kernels/products/product_impls.h"
#include "proto/base/format.h"

namespace lorad::gpu::row_impl {
namespace {

constexpr uint64_t kLargeBytes = uint64_t{48} << 20;  // of a matrix whose workgroups come and go
// Words of a row, of 16 bytes, for so many threads or so many at once.
constexpr uint32_t kLongWords = 384, kSomeWords = 192;

const char* refusal(const ImplFacts& on, const Product& product) {
    if (const char* why = portable_refusal(on, product)) return why;
    if (product.rows != 1) return "it is for one row";
    if (on.options().batch_invariant) return "one variant computes all numbers of rows";
    return on.capabilities().small_workgroups ? "small workgroups have products of their own" : nullptr;
}

MatmulPlan plan_of(const ImplFacts& on, const Product& product, uint32_t form) {
    MatmulPlan plan = portable_plan_for(MatmulVariant::kRow, on, product);
    plan.tile = form;
    plan.column_tile = kRowForms[form].columns;
    plan.k_per_split = product.stride();
    return plan;
}

std::optional<MatmulPlan> plan(const ImplFacts& on, const Product& product) {
    const uint32_t words = product.stride() / 8, by_words = words >= kLongWords ? 0 : words >= kSomeWords ? 1 : 2;
    const bool is_large = uint64_t{product.n} * product.stride() * 2 >= kLargeBytes;
    return plan_of(on, product, is_large ? by_words : 3 + by_words);
}

const char* module(const MatmulPlan&) { return "matmul_row"; }

std::string describe_tile(const MatmulPlan& plan) {
    const RowForm& form = kRowForms[plan.tile];
    return lorad::format("one row: {} threads, {} columns, {} words at once", form.threads, form.columns, form.unroll);
}

struct Constants {
    uint32_t threads, weight_type, act_type, columns, unroll, end, norm_tiles, activation, has_bias;
};

void record(const ImplRecorder& to, const MatmulPlan& plan, const ProductArguments& arguments) {
    const RowForm& form = kRowForms[plan.tile];
    const MatmulParams& product = arguments.product;
    const ResidualOutput& residual = arguments.residual;
    const bool ends_in_stream = plan.ends_in_stream();
    const MatmulRowParams params{.product = product,
                                 .norms = ends_in_stream ? residual.norms : arguments.norm.norms,
                                 .bias = residual.bias,
                                 .stream = residual.stream,
                                 .gamma = residual.gamma,
                                 .xn = residual.xn,
                                 .hidden = arguments.norm.hidden,
                                 .eps = arguments.norm.eps};
    const Constants constants{.threads = to.threads(form.threads, 32),
                              .weight_type = static_cast<uint32_t>(plan.weight_type),
                              .act_type = static_cast<uint32_t>(plan.act_type),
                              .columns = form.columns,
                              .unroll = form.unroll,
                              .end = ends_in_stream    ? 2u
                                     : plan.is_gated() ? 1u
                                                       : 0u,
                              .norm_tiles = plan.norm_is_deferred ? arguments.norm.n_tiles : 0,
                              .activation = static_cast<uint32_t>(plan.activation),
                              .has_bias = residual.bias != 0};
    const uint32_t n_tiles =
        plan.is_gated() ? ceil_div(product.y_stride, form.columns / 2) : ceil_div(product.n, form.columns);
    DispatchInfo info = product_info(module(plan), product, plan);
    if (plan.is_gated()) info = {info.name, info.bytes * 2, info.flops * 2};
    to.dispatch(info, constants, 0, params, {n_tiles, 1, 1});
}

void candidates(const ImplFacts& on, const Product& product, std::vector<MatmulPlan>& all) {
    if (refusal(on, product) != nullptr || product.is_packed()) return;
    for (uint32_t i = 0; i < kRowForms.size(); ++i) all.push_back(plan_of(on, product, i));
}

}  // namespace
}  // namespace lorad::gpu::row_impl

namespace lorad::gpu {

const ProductImpl kRowImpl{.variant = MatmulVariant::kRow,
                           .name = "one row with what comes behind it",
                           .forms = {.results = bit_of(ProductResult::kSums) | bit_of(ProductResult::kGated) |
                                                bit_of(ProductResult::kResidual),
                                     .deferred_norms = true},
                           .refusal = row_impl::refusal,
                           .plan = row_impl::plan,
                           .module = row_impl::module,
                           .record = row_impl::record,
                           .describe = row_impl::describe_tile,
                           .candidates = row_impl::candidates};

}  // namespace lorad::gpu
