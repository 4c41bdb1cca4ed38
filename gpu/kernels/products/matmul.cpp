// The portable implementations, which every device has, of plain and of packed weights: matmul_matvec for few rows,
// matmul_tiled for many, where they have no blocks in registers (matmul_registers.cpp), matmul_lanes where workgroups
// are small.
#include <algorithm>

#include "gpu/kernels/products/product_impls.h"

namespace lorad::gpu::portable_impls {
namespace {

constexpr uint32_t kMatvecMaxRows = 8;
// Where more rows have blocks in registers, of which 8 rows take about as long as one: with short sums and in f32.
constexpr uint32_t kMatvecBesideShortMaxRows = 4, kMatvecBesideRegistersMaxRows = 6;
constexpr uint32_t kLanesMaxRows = 8;
constexpr uint32_t kTiledColumns = 64;

// Splits of k that give the device enough workgroups (or subgroups) of work, each at least min_k long.
uint32_t splits_to_fill(uint32_t wanted, uint32_t present, uint32_t k, uint32_t min_k, uint32_t max_splits) {
    uint32_t splits = std::clamp(ceil_div(wanted, present), 1u, std::max(max_splits, 1u));
    return std::clamp(k / min_k, 1u, splits);
}

void set_splits(MatmulPlan& plan, uint32_t k, uint32_t n_splits) {
    plan.k_per_split = round_up(ceil_div(padded(k), n_splits), kWeightAlign);
    plan.n_splits = ceil_div(padded(k), plan.k_per_split);
}

const char* lanes_refusal(const ImplFacts& on, const Product& product) {
    return on.capabilities().small_workgroups ? portable_refusal(on, product) : "it is for small workgroups";
}

const char* matvec_refusal(const ImplFacts& on, const Product& product) {
    const uint32_t rows_max = !is_for_registers(on, product) ? kMatvecMaxRows
                              : has_short_sums(on, product)  ? kMatvecBesideShortMaxRows
                                                             : kMatvecBesideRegistersMaxRows;
    if (product.rows > rows_max) return "of more rows tiles are faster";
    if (product.rows > 1 && on.measured().find(product) != nullptr) return "others were faster on this device";
    return on.options().batch_invariant ? "one variant computes all numbers of rows" : portable_refusal(on, product);
}

std::optional<MatmulPlan> plan_lanes(const ImplFacts& on, const Product& product) {
    MatmulPlan plan = portable_plan_for(MatmulVariant::kLanes, on, product);
    plan.row_tile = std::min(product.rows, kLanesMaxRows);
    set_splits(plan, product.k, 1);
    return plan;
}

std::optional<MatmulPlan> plan_matvec(const ImplFacts& on, const Product& product) {
    const uint32_t n = product.n, rows = product.rows;
    MatmulPlan plan = portable_plan_for(MatmulVariant::kMatvec, on, product);
    plan.row_tile = rows;
    plan.column_tile = rows > 4 ? 4 : n >= 8192 || rows > 2 ? 2 : 1;
    uint32_t subgroups = ceil_div(n, plan.column_tile);
    set_splits(plan, product.k, splits_to_fill(on.units() * 16, subgroups, product.k, 1024, product.max_splits));
    return plan;
}

std::optional<MatmulPlan> plan_tiled(const ImplFacts& on, const Product& product) {
    const uint32_t rows = product.rows;
    MatmulPlan plan = portable_plan_for(MatmulVariant::kTiled, on, product);
    plan.row_tile = rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
    plan.column_tile = kTiledColumns;
    // With batch_invariant the splits may not depend on the rows either.
    uint32_t row_tiles = on.options().batch_invariant ? 1 : ceil_div(rows, plan.row_tile);
    uint32_t workgroups = padded(product.n) / kTiledColumns * row_tiles;
    set_splits(plan, product.k,
               splits_to_fill(on.units() * 3, workgroups, product.k, 512, std::min(product.max_splits, 8u)));
    return plan;
}

const char* matvec_module(const MatmulPlan&) { return "matmul_matvec"; }
const char* lanes_module(const MatmulPlan&) { return "matmul_lanes"; }
const char* tiled_module(const MatmulPlan&) { return "matmul_tiled"; }

struct MatvecConstants {
    uint32_t threads, weights, act_type, row_tile, column_tile;
};
struct LanesConstants {
    uint32_t threads, weights, act_type, row_tile;
};
struct TiledConstants {
    uint32_t threads, weights, act_type, row_tiles;
};

void record_matvec(const ImplRecorder& to, const MatmulPlan& plan, const ProductArguments& arguments) {
    const MatmulParams& params = arguments.product;
    const uint32_t size = to.threads(128, 32),
                   subgroups = std::max(size / std::max(to.capabilities().subgroup_size, 1u), 1u);
    to.dispatch(product_info("matmul_matvec", params, plan),
                MatvecConstants{.threads = size,
                                .weights = plan.weights().constant(),
                                .act_type = static_cast<uint32_t>(plan.act_type),
                                .row_tile = plan.row_tile,
                                .column_tile = plan.column_tile},
                0, params,
                {ceil_div(params.n, plan.column_tile * subgroups), ceil_div(plan.rows, plan.row_tile), plan.n_splits});
}

void record_lanes(const ImplRecorder& to, const MatmulPlan& plan, const ProductArguments& arguments) {
    const MatmulParams& params = arguments.product;
    const uint32_t size = to.threads(64, 32);
    to.dispatch(product_info("matmul_lanes", params, plan),
                LanesConstants{.threads = size,
                               .weights = plan.weights().constant(),
                               .act_type = static_cast<uint32_t>(plan.act_type),
                               .row_tile = plan.row_tile},
                0, params, {ceil_div(params.n, size), ceil_div(plan.rows, plan.row_tile), plan.n_splits});
}

void record_tiled(const ImplRecorder& to, const MatmulPlan& plan, const ProductArguments& arguments) {
    constexpr uint32_t kThreads = 256, kThreadRows = 16;
    const MatmulParams& params = arguments.product;
    to.dispatch(product_info("matmul_tiled", params, plan),
                TiledConstants{.threads = kThreads,
                               .weights = plan.weights().constant(),
                               .act_type = static_cast<uint32_t>(plan.act_type),
                               .row_tiles = plan.row_tile / kThreadRows},
                0, params, {padded(params.n) / kTiledColumns, ceil_div(plan.rows, plan.row_tile), plan.n_splits});
}

constexpr ImplForms kForms{.reads_packed = true};

}  // namespace
}  // namespace lorad::gpu::portable_impls

namespace lorad::gpu {

// Packed weights come here beside matrix units, too: where they do not fit matmul_packed, and there is no room for a
// plain copy or rows are few.
const char* portable_refusal(const ImplFacts& on, const Product& product) {
    return on.ladder().has(product.type) && !product.is_packed() ? "cooperative matrices are faster" : nullptr;
}

bool is_better_unpacked(const ImplFacts& on, const Product& product) {
    constexpr uint32_t kReadPackedRowsMax = 64;  // on matrices; more are faster with a plain copy of the weights
    if (!on.ladder().has(product.type) || !product.may_unpack) return false;
    const bool can_read = can_read_bricks(on, product);
    if (on.options().batch_invariant) return !can_read;
    if (takes(kPackedWarpgroupImpl, on, product)) return false;
    // If there are matrix units, the portable kernels are for few rows.
    return product.rows > (can_read ? kReadPackedRowsMax : portable_impls::kMatvecMaxRows);
}

const ProductImpl kLanesImpl{.variant = MatmulVariant::kLanes,
                             .name = "lanes",
                             .forms = portable_impls::kForms,
                             .refusal = portable_impls::lanes_refusal,
                             .plan = portable_impls::plan_lanes,
                             .module = portable_impls::lanes_module,
                             .record = portable_impls::record_lanes};
const ProductImpl kMatvecImpl{.variant = MatmulVariant::kMatvec,
                              .name = "few rows",
                              .forms = portable_impls::kForms,
                              .refusal = portable_impls::matvec_refusal,
                              .plan = portable_impls::plan_matvec,
                              .module = portable_impls::matvec_module,
                              .record = portable_impls::record_matvec};
const ProductImpl kTiledImpl{.variant = MatmulVariant::kTiled,
                             .name = "tiles",
                             .forms = portable_impls::kForms,
                             .refusal = portable_refusal,
                             .plan = portable_impls::plan_tiled,
                             .module = portable_impls::tiled_module,
                             .record = portable_impls::record_tiled};

}  // namespace lorad::gpu
