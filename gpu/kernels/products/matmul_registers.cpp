// Products without matrix units: which tile of matmul_registers.comp one takes, and its recording.
#include <algorithm>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/products/register_tiles.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kRegistersSplitsMax = 16;
constexpr uint32_t kStartElements = 48;  // of k, for which a workgroup's start and end take as long
// For a sum of a split to be written and read, half of it in the L2 cache; in the same unit.
constexpr double kSumTime = 1e-2;

MatmulPlan plan_of(const MatmulPlan& of, uint32_t tile, uint32_t k, uint32_t n_splits) {
    MatmulPlan plan = of;
    plan.variant = MatmulVariant::kRegisters;
    plan.tile = tile;
    plan.row_tile = kRegisterTiles[tile].rows();
    plan.column_tile = kRegisterTiles[tile].columns();
    const uint32_t unit = std::max(kRegisterTiles[tile].staged_k(of.short_sum != 0), kWeightAlign);
    plan.k_per_split = round_up(ceil_div(padded(k), n_splits), unit);
    plan.n_splits = ceil_div(padded(k), plan.k_per_split);
    return plan;
}

// What a product is expected to take, in tenths of a nanosecond of an H200. A multiprocessor runs `at_once` workgroups
// side by side; fewer are faster each, but not in proportion.
double time_of(const MatmulPlan& plan, uint32_t n, uint32_t units) {
    const RegisterTile& tile = kRegisterTiles[plan.tile];
    const uint32_t workgroups = ceil_div(padded(n), tile.columns()) * ceil_div(plan.rows, tile.rows()) * plan.n_splits;
    const uint32_t each = ceil_div(workgroups, units), rounds = each / tile.at_once, rest = each % tile.at_once;
    const double alone = 1.0 / (0.6 + 0.4 * tile.at_once);
    const double last = rest == 0 ? 0.0 : std::max(static_cast<double>(rest) / tile.at_once, alone);
    const double multiplying = (rounds + last) * tile.at_once * tile.time * (plan.k_per_split + kStartElements);
    return multiplying + kSumTime * plan.n_splits * plan.rows * n;
}

// With the cut of k that is the fastest.
MatmulPlan best_cut(const MatmulPlan& of, uint32_t tile, uint32_t n, uint32_t k, uint32_t max_splits, uint32_t units) {
    MatmulPlan best = plan_of(of, tile, k, 1);
    for (uint32_t n_splits = 2; n_splits <= std::min(max_splits, kRegistersSplitsMax); n_splits++) {
        const MatmulPlan plan = plan_of(of, tile, k, n_splits);
        if (plan.n_splits == n_splits && time_of(plan, n, units) < time_of(best, n, units)) best = plan;
    }
    return best;
}

}  // namespace

bool fits(const RegisterTile& tile, bool short_sums, uint32_t length, const DeviceCapabilities& caps) {
    // Lanes of such subgroups have 256 registers, which is not enough for 8 x 8 elements and two slices: radv spills.
    if (caps.subgroup_size_max > 32 && tile.slices > 1 && tile.each_n * tile.each_t >= 64) return false;
    return tile.is_valid(short_sums, length) && within_limit(caps, tile.threads()) == tile.threads() &&
           tile.shared_bytes(short_sums, length) <= caps.shared_memory_bytes;
}

std::vector<MatmulPlan> register_candidates(const MatmulPlan& of, uint32_t n, uint32_t k, uint32_t max_splits,
                                            const DeviceCapabilities& caps) {
    std::vector<MatmulPlan> all;
    for (uint32_t i = 0; i < kRegisterTiles.size(); i++) {
        const RegisterTile& tile = kRegisterTiles[i];
        if (!fits(tile, of.short_sum != 0, of.short_sum, caps)) continue;
        if (tile.rows() >= of.rows * 2 + 8 || (tile.rows() < of.rows && tile.rows() < 64)) continue;
        all.push_back(best_cut(of, i, n, k, max_splits, multiprocessors(caps)));
    }
    return all;
}

std::vector<MatmulPlan> ProductPlanner::portable_candidates(uint32_t n, uint32_t k, ScalarType type, uint32_t rows,
                                                            uint32_t max_splits) const {
    MatmulPlan plan;
    plan.rows = rows;
    plan.weight_type = type;
    plan.act_type = act_type(type);
    std::vector<MatmulPlan> all = register_candidates(plan, n, k, max_splits, capabilities());
    for (const uint32_t length : {16u, 32u}) {
        if (type != ScalarType::kF16 || !ladder().short_sums) break;
        plan.short_sum = length;
        const std::vector<MatmulPlan> more = register_candidates(plan, n, k, max_splits, capabilities());
        all.insert(all.end(), more.begin(), more.end());
    }
    return all;
}

std::optional<MatmulPlan> ProductPlanner::plan_registers(const MatmulPlan& of, uint32_t n, uint32_t k,
                                                         uint32_t max_splits) const {
    const uint32_t units = multiprocessors(capabilities());
    std::optional<MatmulPlan> best;
    for (uint32_t i = 0; i < kRegisterTiles.size(); i++) {
        const RegisterTile& tile = kRegisterTiles[i];
        if (!fits(tile, of.short_sum != 0, of.short_sum, capabilities())) continue;
        const MatmulPlan plan = best_cut(of, i, n, k, max_splits, units);
        if (!best || time_of(plan, n, units) < time_of(*best, n, units)) best = plan;
    }
    return best;
}

void ProductKernels::matmul_registers(Recorder& recorder, const MatmulParams& params, const MatmulPlan& plan) {
    const RegisterTile& tile = kRegisterTiles[plan.tile];
    const bool short_sums = plan.short_sum != 0;
    CHECK(fits(tile, short_sums, plan.short_sum, capabilities()));
    const DispatchInfo info = product_info(variant_name(plan), params, plan);
    std::vector<uint32_t> constants = {tile.threads(),
                                       plan.weights().constant(),
                                       static_cast<uint32_t>(plan.act_type),
                                       tile.lanes_n,
                                       tile.lanes_t,
                                       tile.each_n,
                                       tile.each_t,
                                       tile.words * (short_sums ? 8 : 4),
                                       tile.slices,
                                       tile.buffers,
                                       tile.group_n()};
    if (short_sums) constants.push_back(plan.short_sum);
    const Kernel* k = kernel(info.name, constants);
    if (k == nullptr) return;
    recorder.dispatch(*k, params, ceil_div(plan.rows, tile.rows()), ceil_div(padded(params.n), tile.columns()),
                      plan.n_splits, info);
}

}  // namespace lorad::gpu
