// Plans and recordings of products that end in the residual stream. Those behind them, on which the factors of a
// deferred norm come, are in matmul_fast.cpp.
#include <algorithm>
#include <optional>
#include <vector>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/products/deferred_norm.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kSubgroup = 32;
constexpr uint32_t kColumnsMax = 16;
// workgroups that a multiprocessor wants: the beginning and end of one that is alone is time in which nothing is read
constexpr uint32_t kTogether = 2;
constexpr uint32_t kSubgroupsMin = 4;  // whose threads have a pair of columns each, of all rows, at the end

// As many as give the busiest multiprocessor least to read: 3,584 are 14 columns for each of 256 workgroups on 132, two
// each; 1,536 are 8 for each of 192.
// 0: no number of columns divides n.
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
bool fits(const ResidualPlan& plan, const DeviceCapabilities& caps) {
    const uint32_t row_sums = round_up(plan.columns, 16), threads = plan.subgroups * kSubgroup;
    return threads <= threads_max(caps) && threads >= row_sums / 2 * deferred_norm_rows(plan.rows) &&
           plan.subgroups * 16 * row_sums * 4 <= caps.shared_memory_bytes;
}

ResidualPlan plan_of(uint32_t n, uint32_t columns, uint32_t subgroups, uint32_t k_step, uint32_t rows,
                     ScalarType type) {
    return {.columns = columns,
            .subgroups = subgroups,
            .k_step = k_step,
            .rows = rows,
            .n_tiles = n / columns,
            .type = type};
}

}  // namespace

std::optional<ResidualPlan> ProductPlanner::plan_residual(uint32_t n, uint32_t k, ScalarType type,
                                                          uint32_t rows) const {
    if (!ladder().has_residual(type) || options().batch_invariant) return std::nullopt;
    const uint32_t columns = columns_of(n, multiprocessors(capabilities()));
    if (columns == 0 || rows > kDeferredRows || fast_variant(n, rows, type) != MatmulVariant::kCoopmat)
        return std::nullopt;
    const uint32_t stride = padded(k), k_step = stride % 128 == 0 ? 128 : 64;
    // As many as two workgroups on a multiprocessor have registers for.
    const uint32_t subgroups =
        std::clamp(stride / k_step, kSubgroupsMin, deferred_norm_rows(rows) == kDeferredRows ? 6u : 8u);
    const ResidualPlan plan = plan_of(n, columns, subgroups, k_step, rows, type);
    return fits(plan, capabilities()) ? std::optional(plan) : std::nullopt;
}

std::vector<ResidualPlan> ProductPlanner::residual_candidates(uint32_t n, uint32_t k, ScalarType type,
                                                              uint32_t rows) const {
    std::vector<ResidualPlan> all;
    if (!plan_residual(n, k, type, rows)) return all;
    for (const uint32_t columns : {8u, 10u, 12u, 14u, 16u, 28u, 32u}) {
        for (const uint32_t subgroups : {4u, 6u, 7u, 8u, 12u, 16u}) {
            for (const uint32_t k_step : {32u, 64u, 128u}) {
                if (n % columns != 0 || padded(k) % k_step != 0) continue;
                const ResidualPlan plan = plan_of(n, columns, subgroups, k_step, rows, type);
                if (fits(plan, capabilities())) all.push_back(plan);
            }
        }
    }
    return all;
}

void ProductKernels::matmul_residual(Recorder& recorder, const MatmulResidualParams& params, const ResidualPlan& plan) {
    // So a row's results, two columns a lane, are neighbours in one subgroup.
    CHECK(plan.columns % 2 == 0 && plan.columns <= kSubgroup && params.w_stride % plan.k_step == 0);
    const char* name = plan.type == ScalarType::kBf16 ? "matmul_residual_bf16" : "matmul_residual_f16";
    const Kernel* k = kernel(name,
                             {plan.subgroups * kSubgroup, plan.columns, deferred_norm_rows(plan.rows), plan.k_step,
                              params.w_stride, params.bias != 0},
                             kSubgroup);
    if (k == nullptr) return;
    const uint64_t elements = uint64_t{plan.n_tiles} * plan.columns * params.w_stride;
    recorder.dispatch(*k, params, plan.n_tiles, 1, 1, {name, elements * 2, elements * 2 * plan.rows});
}

}  // namespace lorad::gpu
