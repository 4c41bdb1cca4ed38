// Plans and recordings of products that read packed weights on cooperative matrices (matmul_packed.comp).
#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/products/packed_tiles.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kPackedSubgroup = 32, kPackedStep = 128;
constexpr uint32_t kPackedEnds = 2;            // what a workgroup's beginning and end cost, in steps
constexpr uint32_t kPackedInvariantRows = 32;  // whose cut of k all numbers of rows take with batch_invariant

// The smallest tile that has all rows, or the largest.
uint32_t packed_tile_for(uint32_t rows) {
    const auto* tile = std::ranges::find_if(kPackedTiles, [&](const PackedTile& t) { return t.rows >= rows; });
    return static_cast<uint32_t>(std::min<ptrdiff_t>(tile - kPackedTiles.begin(), kPackedTiles.size() - 1));
}

uint32_t packed_splits_for(const PackedTile& tile, uint32_t n, uint32_t steps, uint32_t rows, uint32_t max_splits,
                           uint32_t units) {
    const uint32_t tiles = ceil_div(n, tile.columns()) * ceil_div(rows, tile.rows), slots = units * tile.at_once;
    double least = std::numeric_limits<double>::infinity();
    uint32_t best = 1;
    for (uint32_t n_splits = 1; n_splits <= std::min(max_splits, steps); n_splits++) {
        const uint32_t split_steps = ceil_div(steps, n_splits);
        if (ceil_div(steps, split_steps) != n_splits) continue;
        // In steps of one workgroup, of which a step moves about half a byte a weight; a split's sums are written and
        // read.
        const double sums = 8.0 * rows * n * (n_splits - 1) / (tile.columns() * kPackedStep * 0.5 * slots);
        const double cost = ceil_div(tiles * n_splits, slots) * static_cast<double>(split_steps + kPackedEnds) + sums;
        if (cost < least * 0.98) {
            least = cost;
            best = n_splits;
        }
    }
    return best;
}

}  // namespace

bool ProductPlanner::multiplies_packed(const PackedShape& w) const {
    return ladder().has_packed(w.type) && padded(w.k) % kPackedStep == 0 && w.align % kBrickRows == 0;
}

MatmulPlan ProductPlanner::plan_on_matrices(const PackedShape& w, const ProductWish& wish) const {
    MatmulPlan plan;
    plan.variant = MatmulVariant::kPacked;
    plan.tile = packed_tile_for(wish.rows);
    const PackedTile& tile = kPackedTiles[plan.tile];
    plan.rows = wish.rows;
    plan.row_tile = tile.rows;
    plan.column_tile = tile.columns();
    plan.weight_type = plan.act_type = w.type;
    plan.packed = static_cast<WeightFormat>(std::countr_zero(w.formats));
    const uint32_t steps = padded(w.k) / kPackedStep, units = multiprocessors(capabilities());
    const uint32_t n_splits = options().batch_invariant
                                  ? packed_splits_for(kPackedTiles[packed_tile_for(kPackedInvariantRows)], w.n, steps,
                                                      kPackedInvariantRows, wish.max_splits, units)
                                  : packed_splits_for(tile, w.n, steps, wish.rows, wish.max_splits, units);
    plan.k_per_split = ceil_div(steps, n_splits) * kPackedStep;
    plan.n_splits = n_splits;
    return plan;
}

void ProductKernels::matmul_packed(Recorder& recorder, MatmulParams params, const MatmulPlan& plan) {
    const PackedTile& tile = kPackedTiles[plan.tile];
    CHECK(params.n % kBrickRows == 0 && params.w_stride % kPackedStep == 0 && plan.k_per_split % kPackedStep == 0);
    params.k_per_split = plan.k_per_split;
    const char* name = variant_name(plan);
    const Kernel* k = kernel(name,
                             {tile.subgroups * kPackedSubgroup, plan.weights().constant(), tile.bands, tile.rows,
                              tile.steps, params.w_stride, tile.held, plan.rows},
                             kPackedSubgroup);
    if (k == nullptr) return;
    recorder.dispatch(*k, params, ceil_div(plan.rows, tile.rows), plan.n_splits, ceil_div(params.n, tile.columns()),
                      product_info(name, params, plan));
}

}  // namespace lorad::gpu
