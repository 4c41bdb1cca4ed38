// One row by plain weights of 16 bits: each subgroup has rows of w, and k in as many parts as keep the device busy.
#include <algorithm>
#include <array>

#include "gpu/kernels/products/product_impls.h"

namespace lorad::gpu::gemv_impl {
namespace {

constexpr uint32_t kRowsMax = 1;            // from two rows on, a 16-row cooperative-matrix tile is faster
constexpr uint32_t kSubgroupsPerUnit = 24;  // that keep a multiprocessor's loads in flight
constexpr std::array<uint32_t, 2> kThreads = {256, 1024};  // by MatmulPlan::tile

uint32_t tile_for(uint32_t n, uint32_t stride) { return n >= 16384 || stride >= 8192 ? 1 : 0; }

// Loads in flight per thread: four or more, and such that few are left over, which are not overlapped.
uint32_t unroll_for(uint32_t threads, uint32_t n_k, uint32_t subgroup_size) {
    const uint32_t loads = std::max(ceil_div(n_k, 8 * subgroup_size), 1u);
    if (threads == kThreads[0] && loads % 7 == 0) return 7;
    if (loads >= 8) return 4;
    uint32_t best = 1;
    for (uint32_t unroll = 2; unroll <= 6; ++unroll) {
        if (unroll <= n_k / (8 * subgroup_size) && loads % unroll <= loads % best) best = unroll;
    }
    return best;
}

const char* refusal(const ImplFacts& on, const Product& product) {
    if (!on.ladder().has(product.type)) return "the device has no 16-bit activations for this type";
    return is_one_row_alone(on, product) ? nullptr : "of several rows matrices are faster";
}

std::optional<MatmulPlan> plan(const ImplFacts& on, const Product& product) {
    const uint32_t stride = product.stride();
    MatmulPlan plan = plan_for(MatmulVariant::kGemv, product);
    plan.tile = tile_for(product.n, stride);
    plan.k_per_split = stride;
    // A matrix of few rows is cut along k until there are subgroups enough.
    const uint32_t subgroups = product.n * product.rows, per_load = 8 * on.capabilities().subgroup_size;
    const uint32_t n_splits = std::clamp(on.units() * kSubgroupsPerUnit / subgroups, 1u,
                                         std::max(std::min(product.max_splits, stride / (2 * per_load)), 1u));
    if (n_splits > 1) plan.k_per_split = round_up(ceil_div(stride, n_splits), std::max(per_load, kWeightAlign));
    plan.n_splits = ceil_div(stride, plan.k_per_split);
    return plan;
}

const char* module(const MatmulPlan&) { return "matmul_gemv"; }

struct Constants {
    uint32_t threads, weight_type, unroll;
};

void record(const ImplRecorder& to, const MatmulPlan& plan, const ProductArguments& arguments) {
    const MatmulParams& params = arguments.product;
    const uint32_t subgroup = to.capabilities().subgroup_size, wished = kThreads[plan.tile],
                   size = to.threads(wished, wished);
    const Constants constants{.threads = size,
                              .weight_type = static_cast<uint32_t>(plan.weight_type),
                              .unroll = unroll_for(wished, plan.k_per_split, subgroup)};
    to.dispatch(product_info(module(plan), params, plan), constants, subgroup, params,
                {plan.rows, ceil_div(params.n, std::max(size / subgroup, 1u)), plan.n_splits});
}

}  // namespace
}  // namespace lorad::gpu::gemv_impl

namespace lorad::gpu {

bool is_one_row_alone(const ImplFacts& on, const Product& product) {
    return product.rows <= gemv_impl::kRowsMax && !on.options().batch_invariant;
}

const ProductImpl kGemvImpl{.variant = MatmulVariant::kGemv,
                            .name = "one row",
                            .forms = {.reads_16_bits = true},
                            .refusal = gemv_impl::refusal,
                            .plan = gemv_impl::plan,
                            .module = gemv_impl::module,
                            .record = gemv_impl::record};

}  // namespace lorad::gpu
