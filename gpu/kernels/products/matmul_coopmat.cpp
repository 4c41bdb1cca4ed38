// Products by KHR cooperative matrices (matmul_coopmat.comp): sums and gated ones, with adapters of long runs, behind a
// deferred norm, of x in rows or in fragments. docs/PERFORMANCE.md has the measurements behind the rules.
#include <algorithm>
#include <array>

#include "gpu/kernels/products/coopmat_tiles.h"
#include "gpu/kernels/products/deferred_norm.h"
#include "gpu/kernels/products/product_impls.h"
#include "proto/base/format.h"

namespace lorad::gpu::coopmat_impl {
namespace {

// With so many times as many workgroups as run side by side, some wait for others to end. With fewer all may run side
// by side after all, as that is an estimate, and tiles in turns would give some multiprocessors twice as many.
constexpr uint32_t kPersistentRoundsMin = 2;

constexpr double kDispatchBytes = 100e3;  // what a multiprocessor moves while a dispatch begins and ends

constexpr uint32_t kFragmentsMinRows = 256;  // fewer gain nothing (docs/PERFORMANCE.md, "Activations in fragments")

bool can_be_in_fragments(const ImplFacts& on, const Product& product) {
    return product.may_be_in_fragments && product.rows >= kFragmentsMinRows &&
           on.ladder().has(RungId::kFragments, product.type) && !on.options().batch_invariant;
}

TileRequest tile_request(const ImplFacts& on, const Product& product, bool gated) {
    return {.n = product.n,
            .stride = product.stride(),
            .rows = product.rows,
            .max_splits = gated ? 1 : product.max_splits,
            .gated = gated,
            .batch_invariant = on.options().batch_invariant,
            .in_fragments = can_be_in_fragments(on, product)};
}

// Returns true if the activation in the product saves more than the tile that can do it costs. Apart, sums are written
// and read once more, and there is one more dispatch.
bool gating_pays(const ImplFacts& on, const Product& product) {
    const TileChoice apart = choose_tile(on.capabilities(), tile_request(on, product, false)),
                     together = choose_tile(on.capabilities(), tile_request(on, product, true));
    const double sums = product.rows + (apart.n_splits - 1.0) * (product.rows - apart.whole_rows);
    const double saved = 8.0 * sums * product.n / on.units() + kDispatchBytes;
    return on.options().gated == GatedProducts::kAlways || together.cost <= apart.cost + saved;
}

const char* gated_refusal(const ImplFacts& on, const Product& product) {
    if (!on.ladder().has(RungId::kGated, product.type))
        return "the device has no kernel for the activation in a product";
    if (on.options().batch_invariant) return "one variant computes all numbers of rows";
    if (!may_gate(on, product)) return "options or sizes keep the activation apart";
    return gating_pays(on, product) ? nullptr : "with the activation apart it is faster";
}

const char* refusal(const ImplFacts& on, const Product& product) {
    const KernelLadder& ladder = on.ladder();
    if (!ladder.has(product.type)) return "the device has no cooperative matrices for this type";
    if (is_one_row_alone(on, product)) return "one row has an implementation of its own";
    if (is_for_matrices2(on, product)) return "NV matrices 2 are asked for";
    const bool gated = product.result == ProductResult::kGated;
    if (product.norm_is_deferred && (!ladder.has(RungId::kResidual, product.type) || product.rows > kDeferredRows ||
                                     product.adapters != AdapterForm::kApart))
        return "deferred norms are of up to 16 rows without adapters, where the device has kernels for them";
    if (product.adapters == AdapterForm::kRuns) {
        if (on.options().batch_invariant) return "one variant computes all numbers of rows";
        if (gated ? !ladder.has(RungId::kGatedAdapters, product.type) : !ladder.has(RungId::kAdapters, product.type))
            return "the device has no kernel for adapters in a product";
        if (consumers_add_runs_faster(on, product))
            return "warpgroups, and consumers that add so few ranks, are faster";
    }
    return gated ? gated_refusal(on, product) : nullptr;
}

std::optional<MatmulPlan> plan(const ImplFacts& on, const Product& product) {
    const TileChoice choice =
        choose_tile(on.capabilities(), tile_request(on, product, product.result == ProductResult::kGated));
    if (choice.k_per_split == 0) return std::nullopt;
    MatmulPlan plan = plan_for(MatmulVariant::kCoopmat, product);
    take(plan, choice);
    if (product.norm_is_deferred && plan.row_tile != kDeferredRows) return std::nullopt;
    return plan;
}

const char* module(const MatmulPlan& plan) {
    const bool bf16 = plan.weight_type == ScalarType::kBf16;
    static constexpr const char* kDeferredNames[2][2] = {
        // [gated][bf16]
        {"matmul_coopmat_deferred_f16", "matmul_coopmat_deferred_bf16"},
        {"matmul_coopmat_gated_deferred_f16", "matmul_coopmat_gated_deferred_bf16"}};
    if (plan.norm_is_deferred) return kDeferredNames[plan.is_gated()][bf16];
    static constexpr const char* kNames[2][2][2][2] = {
        // [x in fragments][gated][adapters][bf16]
        {{{"matmul_coopmat_f16", "matmul_coopmat_bf16"}, {"matmul_coopmat_lora_f16", "matmul_coopmat_lora_bf16"}},
         {{"matmul_coopmat_gated_f16", "matmul_coopmat_gated_bf16"},
          {"matmul_coopmat_gated_lora_f16", "matmul_coopmat_gated_lora_bf16"}}},
        {{{"matmul_coopmat_fragments_f16", "matmul_coopmat_fragments_bf16"},
          {"matmul_coopmat_lora_fragments_f16", "matmul_coopmat_lora_fragments_bf16"}},
         {{"matmul_coopmat_gated_fragments_f16", "matmul_coopmat_gated_fragments_bf16"},
          {"matmul_coopmat_gated_lora_fragments_f16", "matmul_coopmat_gated_lora_fragments_bf16"}}}};
    return kNames[plan.x_in_fragments][plan.is_gated()][plan.adapters == AdapterForm::kRuns][bf16];
}

std::string describe_tile(const MatmulPlan& plan) {
    const CoopmatTile& t = kCoopmatTiles[plan.tile];
    return lorad::format("coopmat {}x{}x{} sub{}/{}{}{}{}", t.rows, t.columns, t.k, t.subgroups, t.subgroups_n,
                         t.late ? " late" : "", plan.x_in_fragments ? " x in blocks" : "",
                         plan.whole_rows > 0 ? lorad::format(", {} rows whole", plan.whole_rows) : "");
}

struct Constants {
    uint32_t threads, columns, rows, k, subgroups_n, stride, subgroup, late, activation, whole_tiles, persistent, units,
        norm_tiles, norm_rows, y_order;
};

template <typename Params>
void record_with(const ImplRecorder& to, const MatmulPlan& plan, const ProductArguments& arguments,
                 const Params& params) {
    CHECK(!plan.x_in_fragments || plan.tile == kFragmentsTile);
    const CoopmatTile& tile = kCoopmatTiles[plan.tile];
    const uint32_t subgroup = to.capabilities().subgroup_size;
    const uint32_t columns = plan.is_gated() ? plan.column_tile / 2 : plan.column_tile;
    MatmulParams whole = arguments.product;
    whole.n *= plan.column_tile / columns;
    const uint32_t row_tiles = ceil_div(plan.rows, plan.row_tile), whole_tiles = plan.whole_rows / plan.row_tile,
                   column_tiles = ceil_div(arguments.product.n, columns);
    const uint32_t at_once = workgroups_at_once(tile, to.capabilities());
    const bool come_and_go = plan.n_splits * column_tiles >= kPersistentRoundsMin * at_once;
    // The late tiles' loads have no room for another tile's.
    const bool persistent = come_and_go && row_tiles * plan.n_splits == 1 && !tile.late;
    const bool by_unit = row_tiles == 1 && (persistent || !come_and_go);
    const uint32_t norm_tiles = plan.norm_is_deferred ? arguments.norm.n_tiles : 0;
    const Constants constants{.threads = tile.subgroups * subgroup,
                              .columns = tile.columns,
                              .rows = tile.rows,
                              .k = tile.k,
                              .subgroups_n = tile.subgroups_n,
                              .stride = arguments.product.w_stride,
                              .subgroup = subgroup,
                              .late = tile.late,
                              .activation = static_cast<uint32_t>(plan.activation),
                              .whole_tiles = plan.whole_rows / tile.rows,
                              .persistent = persistent,
                              .units = by_unit ? to.capabilities().n_compute_units_hint : 0,
                              .norm_tiles = norm_tiles,
                              .norm_rows = norm_tiles > 0 ? deferred_norm_rows(plan.rows) : 0,
                              .y_order = plan.is_gated() ? arguments.y_order : kFragmentsByColumns};
    const DispatchInfo info = product_info(module(plan), whole, plan);
    if (whole_tiles == 0)
        to.dispatch(info, constants, subgroup, params, {row_tiles, plan.n_splits, persistent ? at_once : column_tiles});
    else
        to.dispatch(info, constants, subgroup, params,
                    {std::max(whole_tiles, row_tiles - whole_tiles), column_tiles, plan.n_splits + 1});
}

void record(const ImplRecorder& to, const MatmulPlan& plan, const ProductArguments& arguments) {
    const MatmulParams& product = arguments.product;
    if (plan.norm_is_deferred) {
        const DeferredNorm& norm = arguments.norm;
        CHECK(norm.n_tiles > 0);
        return record_with(
            to, plan, arguments,
            MatmulDeferredParams{.product = product, .norms = norm.norms, .hidden = norm.hidden, .eps = norm.eps});
    }
    if (plan.adapters != AdapterForm::kRuns) return record_with(to, plan, arguments, product);
    const RunAdapters& runs = arguments.runs;
    record_with(to, plan, arguments,
                MatmulLoraParams{.product = product,
                                 .step = runs.step,
                                 .lora_layer = runs.lora_layer,
                                 .low = runs.low,
                                 .lora_slot_stride = runs.lora_slot_stride,
                                 .first_module = runs.first_module,
                                 .n_modules = runs.n_modules,
                                 .module_end = {runs.module_end[0], runs.module_end[1], runs.module_end[2]}});
}

void candidates(const ImplFacts& on, const Product& product, std::vector<MatmulPlan>& all) {
    const uint32_t n = product.n, stride = product.stride(), rows = product.rows;
    const size_t begin = all.size();
    MatmulPlan plan = plan_for(MatmulVariant::kCoopmat, product);
    for (plan.tile = 0; plan.tile < kCoopmatTiles.size(); ++plan.tile) {
        const CoopmatTile& tile = kCoopmatTiles[plan.tile];
        if (tile.whole_k) continue;  // there is the same one that may be split
        if (!fits(tile, n, stride, on.capabilities()) || tile.rows >= rows * 2 + 15 ||
            (tile.rows < rows && tile.rows < 64))
            continue;
        plan.row_tile = tile.rows;
        plan.column_tile = tile.columns;
        add_splits(on, product, plan, tile.k, all);
        for (uint32_t n_splits = 2; n_splits <= std::min(product.max_splits, kMixedSplits); ++n_splits) {
            const TileRequest request{.n = n, .stride = stride, .rows = rows, .max_splits = product.max_splits};
            const uint32_t whole_rows = best_whole_rows(tile, request, n_splits, on.capabilities());
            if (whole_rows == 0) continue;
            all.push_back(plan);
            all.back().whole_rows = whole_rows;
            all.back().n_splits = n_splits;
            all.back().k_per_split = ceil_div(stride / tile.k, n_splits) * tile.k;
        }
    }
    Product in_fragments = product;
    in_fragments.may_be_in_fragments = true;
    if (!can_be_in_fragments(on, in_fragments)) return;
    for (size_t i = begin, end = all.size(); i < end; ++i) {
        if (all[i].tile != kFragmentsTile) continue;
        all.push_back(all[i]);
        all.back().x_in_fragments = true;
    }
}

}  // namespace
}  // namespace lorad::gpu::coopmat_impl

namespace lorad::gpu {

void take(MatmulPlan& plan, const TileChoice& choice) {
    CHECK(choice.k_per_split != 0);
    plan.tile = choice.tile;
    plan.row_tile = kCoopmatTiles[choice.tile].rows;
    plan.column_tile = kCoopmatTiles[choice.tile].columns;
    plan.n_splits = choice.n_splits;
    plan.k_per_split = choice.k_per_split;
    plan.whole_rows = choice.whole_rows;
    plan.x_in_fragments = choice.x_in_fragments;
}

bool may_gate(const ImplFacts& on, const Product& product) {
    return on.options().gated != GatedProducts::kNever && product.n % (2 * kWeightAlign) == 0;
}

const ProductImpl kCoopmatImpl{.variant = MatmulVariant::kCoopmat,
                               .name = "KHR matrices",
                               .forms = {.results = bit_of(ProductResult::kSums) | bit_of(ProductResult::kGated),
                                         .adapters = bit_of(AdapterForm::kApart) | bit_of(AdapterForm::kRuns),
                                         .reads_16_bits = true,
                                         .deferred_norms = true},
                               .refusal = coopmat_impl::refusal,
                               .plan = coopmat_impl::plan,
                               .module = coopmat_impl::module,
                               .record = coopmat_impl::record,
                               .describe = coopmat_impl::describe_tile,
                               .candidates = coopmat_impl::candidates};

}  // namespace lorad::gpu
