// Products with bias that end in the residual stream, in one dispatch, not a product and add_norm
// (matmul_residual.comp). The products behind them, which apply a deferred norm's factors, are in matmul_coopmat.cpp.
#include <algorithm>

#include "gpu/kernels/products/deferred_norm.h"
#include "gpu/kernels/products/matmul_residual.params.h"
#include "gpu/kernels/products/product_impls.h"
#include "proto/base/format.h"

namespace lorad::gpu::residual_impl {
namespace {

constexpr uint32_t kSubgroup = 32;
constexpr uint32_t kColumnsMax = 16;
// workgroups that a multiprocessor wants: the beginning and end of one that is alone is time in which nothing is read
constexpr uint32_t kTogether = 2;
constexpr uint32_t kSubgroupsMin = 4;  // whose threads have a pair of columns each, of all rows, at the end

// As many as give the busiest multiprocessor least to read: 3,584 are 14 columns for each of 256 workgroups on 132, two
// each; 1,536 are 8 for each of 192. 0: no number of columns divides n.
uint32_t columns_of(uint32_t n, uint32_t units) {
    uint32_t best = 0, least = UINT32_MAX;
    for (uint32_t columns = kColumnsMax; columns >= kDeferredColumnsMin; columns -= 2) {
        if (n % columns != 0) continue;
        const uint32_t busiest = std::max(ceil_div(n / columns, units), kTogether) * columns;
        if (busiest < least) {
            least = busiest;
            best = columns;
        }
    }
    return best;
}

// The device takes the workgroup, and it has threads for its results' pairs and shared memory for its subgroups' sums.
bool fits(const MatmulPlan& plan, const DeviceCapabilities& caps) {
    const uint32_t row_sums = round_up(plan.column_tile, 16), threads = plan.subgroups * kSubgroup;
    return threads <= threads_max(caps) && threads >= row_sums / 2 * deferred_norm_rows(plan.rows) &&
           plan.subgroups * 16 * row_sums * 4 <= caps.shared_memory_bytes;
}

MatmulPlan plan_of(const Product& product, uint32_t columns, uint32_t subgroups, uint32_t k_step) {
    MatmulPlan plan = plan_for(MatmulVariant::kResidual, product);
    plan.row_tile = kDeferredRows;
    plan.column_tile = columns;
    plan.subgroups = subgroups;
    plan.k_step = k_step;
    return plan;
}

const char* refusal(const ImplFacts& on, const Product& product) {
    if (!on.ladder().has(RungId::kResidual, product.type))
        return "the device has no kernel that ends in the residual stream";
    if (on.options().batch_invariant) return "one variant computes all numbers of rows";
    return product.rows > 1 && product.rows <= kDeferredRows ? nullptr : "it is for 2 to 16 rows";
}

// nullopt if no tile of columns divides n.
std::optional<MatmulPlan> plan(const ImplFacts& on, const Product& product) {
    const uint32_t columns = columns_of(product.n, on.units());
    if (columns == 0) return std::nullopt;
    const uint32_t stride = product.stride(), k_step = stride % 128 == 0 ? 128 : 64;
    // So many that two workgroups on a multiprocessor have registers for them.
    const uint32_t subgroups =
        std::clamp(stride / k_step, kSubgroupsMin, deferred_norm_rows(product.rows) == kDeferredRows ? 6u : 8u);
    const MatmulPlan plan = plan_of(product, columns, subgroups, k_step);
    return fits(plan, on.capabilities()) ? std::optional(plan) : std::nullopt;
}

const char* module(const MatmulPlan& plan) {
    return plan.weight_type == ScalarType::kBf16 ? "matmul_residual_bf16" : "matmul_residual_f16";
}

std::string describe_tile(const MatmulPlan& plan) {
    return lorad::format("to the residual stream: {} columns, {} subgroups, {} of k", plan.column_tile, plan.subgroups,
                         plan.k_step);
}

struct Constants {
    uint32_t threads, columns, rows, k_step, stride, has_bias;
};

void record(const ImplRecorder& to, const MatmulPlan& plan, const ProductArguments& arguments) {
    const MatmulParams& product = arguments.product;
    const ResidualOutput& residual = arguments.residual;
    // So a row's results, two columns a lane, are neighbours in one subgroup.
    CHECK(plan.column_tile % 2 == 0 && plan.column_tile <= kSubgroup && product.w_stride % plan.k_step == 0 &&
          product.n % plan.column_tile == 0);
    const MatmulResidualParams params{.n_rows = product.n_rows,
                                      .w = product.w,
                                      .x = product.x,
                                      .bias = residual.bias,
                                      .stream = residual.stream,
                                      .gamma = residual.gamma,
                                      .xn = residual.xn,
                                      .norms = residual.norms,
                                      .w_stride = product.w_stride,
                                      .stream_stride = residual.stream_stride,
                                      .xn_stride = residual.xn_stride,
                                      .pad = 0};
    const Constants constants{.threads = plan.subgroups * kSubgroup,
                              .columns = plan.column_tile,
                              .rows = deferred_norm_rows(plan.rows),
                              .k_step = plan.k_step,
                              .stride = product.w_stride,
                              .has_bias = residual.bias != 0};
    const uint64_t elements = uint64_t{product.n} * product.w_stride;
    to.dispatch({module(plan), elements * 2, elements * 2 * plan.rows}, constants, kSubgroup, params,
                {plan.column_tiles(product.n), 1, 1});
}

void candidates(const ImplFacts& on, const Product& product, std::vector<MatmulPlan>& all) {
    if (refusal(on, product) != nullptr || !plan(on, product)) return;
    for (const uint32_t columns : {8u, 10u, 12u, 14u, 16u, 28u, 32u}) {
        for (const uint32_t subgroups : {4u, 6u, 7u, 8u, 12u, 16u}) {
            for (const uint32_t k_step : {32u, 64u, 128u}) {
                if (product.n % columns != 0 || product.stride() % k_step != 0) continue;
                const MatmulPlan plan = plan_of(product, columns, subgroups, k_step);
                if (fits(plan, on.capabilities())) all.push_back(plan);
            }
        }
    }
}

}  // namespace
}  // namespace lorad::gpu::residual_impl

namespace lorad::gpu {

const ProductImpl kResidualImpl{.variant = MatmulVariant::kResidual,
                                .name = "to the residual stream",
                                .forms = {.results = bit_of(ProductResult::kResidual), .reads_16_bits = true},
                                .refusal = residual_impl::refusal,
                                .plan = residual_impl::plan,
                                .module = residual_impl::module,
                                .record = residual_impl::record,
                                .describe = residual_impl::describe_tile,
                                .candidates = residual_impl::candidates};

}  // namespace lorad::gpu
