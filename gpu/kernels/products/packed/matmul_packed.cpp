// Products that read packed weights on cooperative matrices (matmul_packed.comp).
#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "gpu/kernels/products/packed/packed_tiles.h"
#include "gpu/kernels/products/product_impls.h"

namespace lorad::gpu::packed_impl {
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
    for (uint32_t n_splits = 1; n_splits <= std::min(max_splits, steps); ++n_splits) {
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

const char* refusal(const ImplFacts& on, const Product& product) {
    return can_read_bricks(on, product) ? nullptr
                                        : "the device has no kernel for packed weights, or their sizes do not fit it";
}

std::optional<MatmulPlan> plan(const ImplFacts& on, const Product& product) {
    MatmulPlan plan = plan_for(MatmulVariant::kPacked, product);
    plan.tile = packed_tile_for(product.rows);
    const PackedTile& tile = kPackedTiles[plan.tile];
    plan.row_tile = tile.rows;
    plan.column_tile = tile.columns();
    const uint32_t steps = product.stride() / kPackedStep;
    const uint32_t n_splits =
        on.options().batch_invariant
            ? packed_splits_for(kPackedTiles[packed_tile_for(kPackedInvariantRows)], product.n, steps,
                                kPackedInvariantRows, product.max_splits, on.units())
            : packed_splits_for(tile, product.n, steps, product.rows, product.max_splits, on.units());
    plan.k_per_split = ceil_div(steps, n_splits) * kPackedStep;
    plan.n_splits = n_splits;
    return plan;
}

const char* module(const MatmulPlan& plan) {
    return plan.weight_type == ScalarType::kBf16 ? "matmul_packed_bf16" : "matmul_packed_f16";
}

struct Constants {
    uint32_t threads, weights, bands, rows, steps, stride, held, row_capacity;
};

void record(const ImplRecorder& to, const MatmulPlan& plan, const ProductArguments& arguments) {
    const MatmulParams& params = arguments.product;
    const PackedTile& tile = kPackedTiles[plan.tile];
    CHECK(params.n % kBrickRows == 0 && params.w_stride % kPackedStep == 0 && plan.k_per_split % kPackedStep == 0);
    const Constants constants{.threads = tile.subgroups * kPackedSubgroup,
                              .weights = plan.weights().constant(),
                              .bands = tile.bands,
                              .rows = tile.rows,
                              .steps = tile.steps,
                              .stride = params.w_stride,
                              .held = tile.held,
                              .row_capacity = plan.rows};
    to.dispatch(product_info(module(plan), params, plan), constants, kPackedSubgroup, params,
                {ceil_div(plan.rows, tile.rows), plan.n_splits, ceil_div(params.n, tile.columns())});
}

}  // namespace
}  // namespace lorad::gpu::packed_impl

namespace lorad::gpu {

bool can_read_bricks(const ImplFacts& on, const Product& product) {
    for (uint32_t rest = product.formats; rest != 0; rest &= rest - 1) {
        if (!is_for_matrices(static_cast<WeightFormat>(std::countr_zero(rest)))) return false;
    }
    return on.ladder().has(RungId::kPacked, product.type) && product.stride() % packed_impl::kPackedStep == 0 &&
           product.align % kBrickRows == 0;
}

const ProductImpl kPackedImpl{.variant = MatmulVariant::kPacked,
                              .name = "packed weights on matrices",
                              .forms = {.reads_plain = false, .reads_packed = true, .reads_16_bits = true},
                              .refusal = packed_impl::refusal,
                              .plan = packed_impl::plan,
                              .module = packed_impl::module,
                              .record = packed_impl::record};

}  // namespace lorad::gpu
