// Products by warpgroups (warpgroup_text.h): sums, gated ones, rows' greatest sums, with adapters as more k, of w by
// rows of n or of k.
#include "gpu/kernels/lora/lora_kernels.h"
#include "gpu/kernels/products/activation_fragments.h"
#include "gpu/kernels/products/product_impls.h"
#include "gpu/kernels/products/warpgroup_direct_text.h"
#include "gpu/kernels/products/warpgroup_text.h"
#include "gpu/kernels/products/warpgroup_tiles.h"
#include "gpu/kernels/sampling/sample_argmax.params.h"
#include "proto/base/format.h"

namespace lorad::gpu::warpgroup_impl {
namespace {

// Rows for which warpgroups are faster than KHR matrices (docs/PERFORMANCE.md, "Products by warpgroups").
constexpr uint32_t kFewRowsMin = 33, kFewRowsMax = kDirectRowsMax, kManyRowsMin = 128;

// of products that say rows' greatest sums; of fewer sums are few, and these were not measured
constexpr uint32_t kGreatestRowsMin = 17;

// H200, prompts of 2,048 tokens: 74 ms by warpgroups with 16 ranks, 170 with 64, 89 by KHR matrices with 16
// (docs/PERFORMANCE.md, "Prompts with adapters").
constexpr uint32_t kLongRunsRankMax = 16;

// Returns true if products of so many rows are by warpgroups; few rows are from few_min on.
bool are_by_warpgroup(uint32_t rows, uint32_t few_min) {
    return (rows >= few_min && rows <= kFewRowsMax) || rows >= kManyRowsMin;
}

const char* refusal(const ImplFacts& on, const Product& product) {
    if (product.result == ProductResult::kGreatest) {
        return are_by_warpgroup(product.rows, kGreatestRowsMin) && on.ladder().has(RungId::kArgmax, product.type) &&
                       product.adapters == AdapterForm::kApart && !on.options().batch_invariant
                   ? nullptr
                   : "the device has no warpgroups that say rows' greatest sums, or they are not for so many rows";
    }
    if (!is_for_warpgroups(on, product)) return "the device has no warpgroups, or they are not for so many rows";
    if (product.result == ProductResult::kGated && (!may_gate(on, product) || product.activation != Activation::kSilu))
        return "options, sizes or the activation keep it apart";
    if (product.adapters == AdapterForm::kStacked &&
        !(on.ladder().has(RungId::kStacked, product.type) &&
          LoraPlanner(on.facts()).shrinks_by_matrix(product.type, product.rows)))
        return "the device has no warpgroups with more k, or no shrink for them";
    return nullptr;
}

std::optional<MatmulPlan> plan(const ImplFacts& on, const Product& product) {
    const bool gated = product.result == ProductResult::kGated, sums = product.result == ProductResult::kSums;
    const WarpgroupChoice choice = choose_warpgroup_tile({.n = product.n,
                                                          .stride = product.stride(),
                                                          .rows = product.rows,
                                                          .max_splits = sums ? product.max_splits : 1,
                                                          .multiprocessors = on.units(),
                                                          .gated = gated,
                                                          .transposed = product.is_n_major});
    if (choice.k_per_split == 0) return std::nullopt;
    const MatmulPlan plan = warpgroup_plan(choice.tile, product, choice.n_splits, choice.k_per_split);
    if (product.adapters == AdapterForm::kStacked && plan.row_tile != kStackedTileRows) return std::nullopt;
    if (product.result == ProductResult::kGreatest && plan.column_tiles(product.n) > kSamplePartsMax)
        return std::nullopt;
    return plan;
}

const char* module(const MatmulPlan& plan) {
    const bool bf16 = plan.weight_type == ScalarType::kBf16, stacked = plan.adapters == AdapterForm::kStacked;
    static constexpr const char* kNames[4][2][2] = {
        // [form][stacked][bf16]
        {{"matmul_warpgroup_f16", "matmul_warpgroup_bf16"},
         {"matmul_warpgroup_stacked_f16", "matmul_warpgroup_stacked_bf16"}},
        {{"matmul_warpgroup_gated_f16", "matmul_warpgroup_gated_bf16"},
         {"matmul_warpgroup_gated_stacked_f16", "matmul_warpgroup_gated_stacked_bf16"}},
        {{"matmul_warpgroup_transposed_f16", "matmul_warpgroup_transposed_bf16"},
         {"matmul_warpgroup_transposed_stacked_f16", "matmul_warpgroup_transposed_stacked_bf16"}},
        {{"matmul_warpgroup_argmax_f16", "matmul_warpgroup_argmax_bf16"}, {}}};
    const uint32_t form = plan.result == ProductResult::kGreatest ? 3 : plan.is_n_major ? 2 : plan.is_gated();
    return kNames[form][stacked][bf16];
}

std::string describe_tile(const MatmulPlan& plan) {
    const WarpgroupTile& t = kWarpgroupTiles[plan.tile];
    return lorad::format("warpgroup {}x{}x{} by {}, {} slots", t.rows(), t.columns, t.k, t.part, t.slots);
}

template <typename Params>
void record_with(const ImplRecorder& to, const MatmulPlan& plan, const ProductArguments& arguments,
                 const Params& params) {
    const WarpgroupTile& tile = kWarpgroupTiles[plan.tile];
    const MatmulParams& product = arguments.product;
    const bool gated = plan.is_gated();
    MatmulParams whole = product;
    if (gated) whole.n *= 2;
    const uint32_t row_tiles = ceil_div(plan.rows, plan.row_tile), tiles = ceil_div(whole.n, tile.columns);
    // No more workgroups than run at once, and a multiprocessor's ones beside each other: fewer pages for it to know
    // (docs/PERFORMANCE.md, "The same rows for a group of multiprocessors").
    const uint32_t units = to.capabilities().n_compute_units_hint, at_once = tile.at_once * units;
    const bool persistent = is_persistent(tiles, row_tiles, plan.n_splits, at_once);
    const bool by_unit = row_tiles == 1 && (persistent || tiles * plan.n_splits <= at_once);
    CHECK(!gated || plan.may_write_fragments(arguments.y_order));
    const WarpgroupConstants constants{
        .threads = tile.threads(),
        .tile = plan.tile,
        .stride = product.x_stride,
        .row_blocks = warpgroup_row_blocks(plan),
        .gated_rows = gated ? product.n : 0,
        .y_order = gated ? arguments.y_order : 0,
        .units = by_unit ? units : 0,
        .persistent = persistent,
        .stacked_columns = plan.adapters == AdapterForm::kStacked ? arguments.stacked.columns : 0,
        .w_columns = plan.is_n_major ? product.w_stride : 0};
    to.dispatch(product_info(module(plan), whole, plan), constants, 0, params,
                {row_tiles, plan.n_splits, persistent ? at_once : tiles});
}

void record(const ImplRecorder& to, const MatmulPlan& plan, const ProductArguments& arguments) {
    const MatmulParams& product = arguments.product;
    CHECK(!plan.is_gated() || (plan.n_splits == 1 && product.y == 0 && product.y_fragments != 0));
    if (plan.result == ProductResult::kGreatest) {
        const uint32_t n_parts = plan.column_tiles(product.n);
        CHECK(plan.n_splits == 1 && n_parts <= kSamplePartsMax);
        return record_with(
            to, plan, arguments,
            MatmulArgmaxParams{.product = product, .partials = arguments.partials, .n_parts = n_parts, .pad = 0});
    }
    if (plan.adapters != AdapterForm::kStacked) return record_with(to, plan, arguments, product);
    const StackedAdapters& stacked = arguments.stacked;
    CHECK(plan.row_tile == kStackedTileRows && stacked.columns > 0 && stacked.columns % kStackedStep == 0);
    record_with(
        to, plan, arguments,
        MatmulStackedParams{.product = product, .windows = stacked.windows, .b = stacked.b, .low = stacked.low});
}

void candidates(const ImplFacts& on, const Product& product, std::vector<MatmulPlan>& all) {
    if (!is_for_warpgroups(on, product)) return;
    for (uint32_t tile = 0; tile < kWarpgroupTiles.size(); ++tile) {
        if (!fits(kWarpgroupTiles[tile], {.n = product.n, .stride = product.stride(), .rows = product.rows})) continue;
        add_splits(on, product, warpgroup_plan(tile, product, 1, product.stride()), kWarpgroupTiles[tile].k, all);
    }
}

}  // namespace
}  // namespace lorad::gpu::warpgroup_impl

namespace lorad::gpu {

bool is_for_warpgroups(const ImplFacts& on, const Product& product) {
    return warpgroup_impl::are_by_warpgroup(product.rows, warpgroup_impl::kFewRowsMin) &&
           on.ladder().has(RungId::kWarpgroups, product.type) && !on.options().batch_invariant;
}

bool consumers_add_runs_faster(const ImplFacts& on, const Product& product) {
    return product.rank_max <= warpgroup_impl::kLongRunsRankMax && product.rows >= warpgroup_impl::kManyRowsMin &&
           is_for_warpgroups(on, product);
}

MatmulPlan warpgroup_plan(uint32_t tile, const Product& product, uint32_t n_splits, uint32_t k_per_split) {
    MatmulPlan plan = plan_for(MatmulVariant::kWarpgroup, product);
    plan.n_splits = n_splits;
    plan.k_per_split = k_per_split;
    plan.tile = tile;
    plan.row_tile = kWarpgroupTiles[tile].rows();
    plan.column_tile = kWarpgroupTiles[tile].columns;
    plan.x_in_fragments = true;
    plan.x_order = kFragmentsByRows;
    plan.writes_fragments_alone = plan.is_gated();
    return plan;
}

uint32_t warpgroup_row_blocks(const MatmulPlan& plan) {
    return plan.rows < plan.row_tile ? ceil_div(plan.rows, kFragmentRows) : 0;
}

const ProductImpl kWarpgroupImpl{.variant = MatmulVariant::kWarpgroup,
                                 .name = "warpgroups",
                                 .forms = {.results = bit_of(ProductResult::kSums) | bit_of(ProductResult::kGated) |
                                                      bit_of(ProductResult::kGreatest),
                                           .adapters = bit_of(AdapterForm::kApart) | bit_of(AdapterForm::kStacked),
                                           .reads_16_bits = true,
                                           .needs_fragments = true,
                                           .n_major = true},
                                 .refusal = warpgroup_impl::refusal,
                                 .plan = warpgroup_impl::plan,
                                 .module = warpgroup_impl::module,
                                 .record = warpgroup_impl::record,
                                 .describe = warpgroup_impl::describe_tile,
                                 .candidates = warpgroup_impl::candidates};

}  // namespace lorad::gpu
