// Products without matrix units: which tile of matmul_registers.comp one takes, and its recording.
#include <algorithm>
#include <cmath>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/products/register_tiles.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kRegistersSplitsMax = 16;
// What a multiprocessor does in a clock, of an H200: elements of y times k in f32 and in short sums, bytes of memory.
constexpr double kProductsAtOnce = 128, kShortProductsAtOnce = 190, kBytesAtOnce = 18;
constexpr uint32_t kThreadsOfTiles = 384;  // of a multiprocessor, with what registers these take

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

// Clocks that a product is expected to take.
double cost_of(const MatmulPlan& plan, uint32_t n, uint32_t k, uint32_t units) {
    const RegisterTile& tile = kRegisterTiles[plan.tile];
    const uint32_t at_once = std::max(kThreadsOfTiles / tile.threads(), 1u);
    const uint64_t workgroups = uint64_t{ceil_div(n, tile.columns())} * ceil_div(plan.rows, tile.rows()) * plan.n_splits;
    const double rounds = std::ceil(static_cast<double>(workgroups) / (units * at_once));
    const double reuse = 1.0 / (1.0 + 20.0 / tile.rows() + 20.0 / tile.columns());
    const double rate = (plan.short_sum != 0 ? kShortProductsAtOnce : kProductsAtOnce) * reuse;
    const double multiplying = rounds * at_once * tile.rows() * tile.columns() * plan.k_per_split / rate;
    const double moving = 2.0 * n * k / units / kBytesAtOnce;
    const double joining = 8.0 * plan.n_splits * plan.rows * n / units / kBytesAtOnce;
    return std::max(multiplying, moving) + joining;
}

}  // namespace

bool fits(const RegisterTile& tile, bool short_sums, uint32_t length, const DeviceCapabilities& caps) {
    return tile.is_valid(short_sums, length) && within_limit(caps, tile.threads()) == tile.threads() &&
           tile.shared_bytes(short_sums, length) <= caps.shared_memory_bytes;
}

std::vector<MatmulPlan> register_candidates(const MatmulPlan& of, uint32_t n, uint32_t k, uint32_t max_splits,
                                            const DeviceCapabilities& caps) {
    std::vector<MatmulPlan> all;
    const uint32_t units = multiprocessors(caps);
    for (uint32_t i = 0; i < kRegisterTiles.size(); i++) {
        const RegisterTile& tile = kRegisterTiles[i];
        if (!fits(tile, of.short_sum != 0, of.short_sum, caps)) continue;
        if (tile.rows() >= of.rows * 2 + 8 || (tile.rows() < of.rows && tile.rows() < 64)) continue;
        const uint32_t tiles = ceil_div(n, tile.columns()) * ceil_div(of.rows, tile.rows());
        uint32_t last = 0;
        for (const uint32_t n_splits : {1u, 2u, 3u, 4u, 6u, 8u, 12u, 16u}) {
            if (n_splits > max_splits || (n_splits > 1 && tiles * n_splits > units * 7)) break;
            if (tiles * n_splits * 2 < units && n_splits < max_splits) continue;
            const MatmulPlan plan = plan_of(of, i, k, n_splits);
            if (plan.n_splits == last) continue;
            last = plan.n_splits;
            all.push_back(plan);
        }
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
                                                         uint32_t n_splits) const {
    const uint32_t units = multiprocessors(capabilities());
    std::optional<MatmulPlan> best;
    double best_cost = 0;
    for (uint32_t i = 0; i < kRegisterTiles.size(); i++) {
        const RegisterTile& tile = kRegisterTiles[i];
        if (!fits(tile, of.short_sum != 0, of.short_sum, capabilities()) ||
            (tile.rows() < of.rows && tile.rows() < 64))
            continue;
        // A row's bits depend on slices and splits.
        if (options().batch_invariant && tile.slices > 1) continue;
        const uint32_t fewest = options().batch_invariant ? n_splits : 1;
        const uint32_t most = options().batch_invariant ? n_splits : std::min({n_splits, kRegistersSplitsMax, k / 256});
        for (uint32_t splits = fewest; splits <= std::max(most, fewest); splits++) {
            const MatmulPlan plan = plan_of(of, i, k, splits);
            const double cost = cost_of(plan, n, k, units);
            if (best && best_cost <= cost) continue;
            best = plan;
            best_cost = cost;
        }
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
