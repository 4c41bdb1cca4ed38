// Plans and recordings of the matmul variants above the portable ones: matvec with 16-bit activations, KHR cooperative
// matrices, NV cooperative matrices 2. docs/PERFORMANCE.md has the measurements behind the tables.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "gpu/kernel_modules.h"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/products/coopmat_tiles.h"
#include "gpu/kernels/products/deferred_norm.h"
#include "gpu/kernels/products/matmul_unrolled.h"
#include "gpu/kernels/products/register_tiles.h"
#include "gpu/kernels/products/warpgroup_tiles.h"
#include "proto/base/format.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kGemvMaxRows = 1;         // from two rows on, a 16-row cooperative-matrix tile is faster
constexpr uint32_t kCoopmat2MinRows = 1536;  // below, splits of k matter more than the larger tile

// matmul_gemv.
constexpr uint32_t kSubgroupsPerUnit = 24;                     // that keep a multiprocessor's loads in flight
constexpr std::array<uint32_t, 2> kGemvThreads = {256, 1024};  // by MatmulPlan::tile

uint32_t gemv_tile(uint32_t n, uint32_t stride) { return n >= 16384 || stride >= 8192 ? 1 : 0; }

// Loads in flight per thread: four or more, and such that few are left over, which are not overlapped.
uint32_t gemv_unroll(uint32_t threads, uint32_t n_k, uint32_t subgroup_size) {
    const uint32_t loads = std::max(ceil_div(n_k, 8 * subgroup_size), 1u);
    if (threads == kGemvThreads[0] && loads % 7 == 0) return 7;
    if (loads >= 8) return 4;
    uint32_t best = 1;
    for (uint32_t unroll = 2; unroll <= 6; unroll++) {
        if (unroll <= n_k / (8 * subgroup_size) && loads % unroll <= loads % best) best = unroll;
    }
    return best;
}

// matmul_coopmat2.
struct Coopmat2Tile {
    uint32_t rows, columns, k, threads;
};
constexpr std::array kCoopmat2Tiles = {Coopmat2Tile{128, 256, 64, 256}, Coopmat2Tile{128, 128, 64, 256}};

// With so many times as many workgroups as run side by side, they come and go. With fewer they may all run side by side
// after all, as that is an estimate, and tiles in turns would give some multiprocessors twice as many as others.
constexpr uint32_t kRoundsInTurns = 2;

constexpr double kDispatchBytes = 100e3;  // what a multiprocessor moves while a dispatch begins and ends

constexpr uint32_t kBlocksMinRows = 256;  // with 128 they gain nothing (docs/PERFORMANCE.md, "Activations in blocks")

const char* coopmat_name(const MatmulPlan& plan, bool gated, bool adapters) {
    static constexpr const char* kNames[2][2][2][2] = {
        // [x in blocks][gated][adapters][bf16]
        {{{"matmul_coopmat_f16", "matmul_coopmat_bf16"}, {"matmul_coopmat_lora_f16", "matmul_coopmat_lora_bf16"}},
         {{"matmul_coopmat_gated_f16", "matmul_coopmat_gated_bf16"},
          {"matmul_coopmat_gated_lora_f16", "matmul_coopmat_gated_lora_bf16"}}},
        {{{"matmul_coopmat_blocks_f16", "matmul_coopmat_blocks_bf16"},
          {"matmul_coopmat_lora_blocks_f16", "matmul_coopmat_lora_blocks_bf16"}},
         {{"matmul_coopmat_gated_blocks_f16", "matmul_coopmat_gated_blocks_bf16"},
          {"matmul_coopmat_gated_lora_blocks_f16", "matmul_coopmat_gated_lora_blocks_bf16"}}}};
    return kNames[plan.x_in_blocks][gated][adapters][plan.weight_type == ScalarType::kBf16];
}

}  // namespace

void take(MatmulPlan& plan, const TileChoice& choice) {
    CHECK(choice.k_per_split != 0);
    plan.tile = choice.tile;
    plan.row_tile = kCoopmatTiles[choice.tile].rows;
    plan.column_tile = kCoopmatTiles[choice.tile].columns;
    plan.n_splits = choice.n_splits;
    plan.k_per_split = choice.k_per_split;
    plan.whole_rows = choice.whole_rows;
    plan.x_in_blocks = choice.x_in_blocks;
}

const char* variant_name(const MatmulPlan& plan) {
    const bool bf16 = plan.weight_type == ScalarType::kBf16;
    switch (plan.variant) {
        case MatmulVariant::kMatvec: return "matmul_matvec";
        case MatmulVariant::kLanes: return UnrolledProduct::is(plan) ? UnrolledProduct::module(plan) : "matmul_lanes";
        case MatmulVariant::kTiled: return "matmul_tiled";
        case MatmulVariant::kRegisters: return plan.short_sum != 0 ? "matmul_registers_f16" : "matmul_registers";
        case MatmulVariant::kGemv: return "matmul_gemv";
        case MatmulVariant::kCoopmat: return coopmat_name(plan, false, false);
        case MatmulVariant::kCoopmat2: return bf16 ? "matmul_coopmat2_bf16" : "matmul_coopmat2_f16";
        case MatmulVariant::kPacked: return bf16 ? "matmul_packed_bf16" : "matmul_packed_f16";
        case MatmulVariant::kWarpgroup: return bf16 ? "matmul_warpgroup_bf16" : "matmul_warpgroup_f16";
        case MatmulVariant::kWarpgroupDirect:
            return bf16 ? "matmul_warpgroup_direct_bf16" : "matmul_warpgroup_direct_f16";
    }
    return "matmul";
}

MatmulVariant ProductPlanner::fast_variant(uint32_t n, uint32_t rows, ScalarType type) const {
    if (options().batch_invariant) return MatmulVariant::kCoopmat;
    if (rows <= kGemvMaxRows) return MatmulVariant::kGemv;
    const bool many = rows >= kCoopmat2MinRows && padded(n) % kCoopmat2Tiles.back().columns == 0;
    return many && ladder().has2(type) ? MatmulVariant::kCoopmat2 : MatmulVariant::kCoopmat;
}

bool ProductPlanner::can_be_in_blocks(ScalarType type, uint32_t rows) const {
    return rows >= kBlocksMinRows && ladder().has_blocks(type) && !options().batch_invariant;
}

MatmulPlan ProductPlanner::plan_fast(MatmulVariant variant, uint32_t n, uint32_t k, ScalarType type, uint32_t rows,
                                     uint32_t max_splits, bool may_be_in_blocks) const {
    const DeviceCapabilities& caps = capabilities();
    const uint32_t stride = padded(k);
    MatmulPlan plan;
    plan.variant = variant;
    plan.rows = rows;
    plan.weight_type = plan.act_type = type;
    plan.k_per_split = stride;
    if (variant == MatmulVariant::kGemv) {
        plan.tile = gemv_tile(n, stride);
        // A matrix of few rows is cut along k until there are subgroups enough.
        const uint32_t subgroups = n * rows;
        const uint32_t per_load = 8 * caps.subgroup_size;
        const uint32_t n_splits = std::clamp(multiprocessors(caps) * kSubgroupsPerUnit / subgroups, 1u,
                                             std::max(std::min(max_splits, stride / (2 * per_load)), 1u));
        if (n_splits > 1) plan.k_per_split = round_up(ceil_div(stride, n_splits), std::max(per_load, kWeightAlign));
        plan.n_splits = ceil_div(stride, plan.k_per_split);
        return plan;
    }
    if (variant == MatmulVariant::kCoopmat2) {
        plan.tile = padded(n) % kCoopmat2Tiles[0].columns == 0 ? 0 : 1;
        plan.row_tile = kCoopmat2Tiles[plan.tile].rows;
        plan.column_tile = kCoopmat2Tiles[plan.tile].columns;
        return plan;
    }
    const bool in_blocks = may_be_in_blocks && can_be_in_blocks(type, rows);
    take(plan, choose_tile(caps, {.n = n,
                                  .stride = stride,
                                  .rows = rows,
                                  .max_splits = max_splits,
                                  .batch_invariant = options().batch_invariant,
                                  .in_blocks = in_blocks}));
    return plan;
}

std::optional<MatmulPlan> ProductPlanner::plan_gated(uint32_t ffn, uint32_t k, ScalarType type, uint32_t rows,
                                                     uint32_t max_splits, bool may_be_in_blocks,
                                                     bool adds_adapters) const {
    const DeviceCapabilities& caps = capabilities();
    const bool by_warpgroup =
        may_be_in_blocks && !adds_adapters && options().gated != GatedProducts::kNever && ffn % kWeightAlign == 0;
    if (by_warpgroup) {
        if (const auto plan = plan_warpgroup(2 * ffn, k, type, rows, 1, true)) return plan;
    }
    if (!ladder().has_gated(type) || options().batch_invariant || options().gated == GatedProducts::kNever ||
        ffn % kWeightAlign != 0)
        return std::nullopt;
    const uint32_t n = 2 * ffn, stride = padded(k);
    if (fast_variant(n, rows, type) != MatmulVariant::kCoopmat) return std::nullopt;
    const bool in_blocks = may_be_in_blocks && can_be_in_blocks(type, rows);
    const TileChoice apart =
        choose_tile(caps, {.n = n, .stride = stride, .rows = rows, .max_splits = max_splits, .in_blocks = in_blocks});
    const TileChoice together = choose_tile(
        caps, {.n = n, .stride = stride, .rows = rows, .max_splits = 1, .gated = true, .in_blocks = in_blocks});
    if (together.k_per_split == 0) return std::nullopt;
    // Sums written and read once more, and a dispatch of its own.
    const double sums = rows + (apart.n_splits - 1.0) * (rows - apart.whole_rows);
    const double saved = 8.0 * sums * n / multiprocessors(caps) + kDispatchBytes;
    if (options().gated != GatedProducts::kAlways && together.cost > apart.cost + saved) return std::nullopt;
    MatmulPlan plan;
    plan.variant = MatmulVariant::kCoopmat;
    plan.rows = rows;
    plan.weight_type = plan.act_type = type;
    take(plan, together);
    return plan;
}

std::string describe(const MatmulPlan& plan) {
    if (plan.variant == MatmulVariant::kCoopmat) {
        const CoopmatTile& t = kCoopmatTiles[plan.tile];
        return lorad::format("coopmat {}x{}x{} sub{}/{}{}{}{}", t.rows, t.columns, t.k, t.subgroups, t.subgroups_n,
                             t.late ? " late" : "", plan.x_in_blocks ? " x in blocks" : "",
                             plan.whole_rows > 0 ? lorad::format(", {} rows whole", plan.whole_rows) : "");
    }
    if (plan.variant == MatmulVariant::kCoopmat2) {
        const Coopmat2Tile& t = kCoopmat2Tiles[plan.tile];
        return lorad::format("coopmat2 {}x{}x{} thr{}", t.rows, t.columns, t.k, t.threads);
    }
    if (plan.variant == MatmulVariant::kWarpgroup) {
        const WarpgroupTile& t = kWarpgroupTiles[plan.tile];
        return lorad::format("warpgroup {}x{}x{} by {}, {} slots", t.rows(), t.columns, t.k, t.part, t.slots);
    }
    if (plan.variant == MatmulVariant::kWarpgroupDirect)
        return lorad::format("warpgroup direct {}x{}", plan.row_tile, plan.column_tile);
    if (plan.variant == MatmulVariant::kRegisters) {
        const RegisterTile& t = kRegisterTiles[plan.tile];
        return lorad::format("registers {}x{}x{} each {}x{} slices{} buffers{} short{}", t.rows(), t.columns(),
                             t.staged_k(plan.short_sum != 0), t.each_t, t.each_n, t.slices, t.buffers, plan.short_sum);
    }
    return variant_name(plan);
}

std::vector<MatmulPlan> ProductPlanner::matmul_candidates(uint32_t n, uint32_t k, ScalarType type, uint32_t rows,
                                                          uint32_t max_splits) const {
    if (!ladder().has(type)) return portable_candidates(n, k, type, rows, max_splits);
    std::vector<MatmulPlan> all;
    const DeviceCapabilities& caps = capabilities();
    const uint32_t units = multiprocessors(caps), stride = padded(k);
    MatmulPlan plan;
    plan.rows = rows;
    plan.weight_type = plan.act_type = type;
    const auto add = [&](uint32_t step_k) {
        const uint32_t unit = std::max(step_k, kWeightAlign), steps = stride / unit;
        const uint32_t tiles = ceil_div(rows, plan.row_tile) * ceil_div(n, plan.column_tile);
        for (uint32_t n_splits = 1; n_splits <= std::min(max_splits, steps); n_splits++) {
            const uint32_t split_steps = ceil_div(steps, n_splits);
            if (ceil_div(steps, split_steps) != n_splits) continue;
            if (n_splits > 1 && tiles * n_splits > units * 9) continue;
            plan.n_splits = n_splits;
            plan.k_per_split = split_steps * unit;
            all.push_back(plan);
        }
    };
    plan.variant = MatmulVariant::kCoopmat;
    for (plan.tile = 0; plan.tile < kCoopmatTiles.size(); plan.tile++) {
        const CoopmatTile& tile = kCoopmatTiles[plan.tile];
        if (tile.whole_k) continue;  // there is the same one that may be split
        if (!fits(tile, n, stride, caps) || tile.rows >= rows * 2 + 15 || (tile.rows < rows && tile.rows < 64))
            continue;
        plan.row_tile = tile.rows;
        plan.column_tile = tile.columns;
        add(tile.k);
        for (uint32_t n_splits = 2; n_splits <= std::min(max_splits, kMixedSplits); n_splits++) {
            plan.whole_rows = best_whole_rows(tile, {.n = n, .stride = stride, .rows = rows, .max_splits = max_splits},
                                              n_splits, caps);
            if (plan.whole_rows == 0) continue;
            plan.n_splits = n_splits;
            plan.k_per_split = ceil_div(stride / tile.k, n_splits) * tile.k;
            all.push_back(plan);
        }
        plan.whole_rows = 0;
    }
    for (size_t i = 0, n_in_rows = all.size(); i < n_in_rows; i++) {
        if (all[i].tile != kBlocksTile || !can_be_in_blocks(type, rows)) continue;
        all.push_back(all[i]);
        all.back().x_in_blocks = true;
    }
    if (multiplies_by_warpgroup(type, rows)) {
        for (uint32_t tile = 0; tile < kWarpgroupTiles.size(); tile++) {
            if (!fits(kWarpgroupTiles[tile], {.n = n, .stride = stride, .rows = rows})) continue;
            plan = plan_of_warpgroup(tile, rows, 1, stride, type);
            add(kWarpgroupTiles[tile].k);
        }
        plan.x_in_blocks = false;
        plan.x_order = kBlocksByColumns;
    }
    if (const auto direct = plan_direct(n, k, type, rows, max_splits, false)) all.push_back(*direct);
    if (rows >= 512 && ladder().has2(type)) {
        plan.variant = MatmulVariant::kCoopmat2;
        plan.n_splits = 1;
        plan.k_per_split = stride;
        for (plan.tile = 0; plan.tile < kCoopmat2Tiles.size(); plan.tile++) {
            const Coopmat2Tile& tile = kCoopmat2Tiles[plan.tile];
            if (padded(n) % tile.columns != 0 || stride % tile.k != 0) continue;
            plan.row_tile = tile.rows;
            plan.column_tile = tile.columns;
            all.push_back(plan);
        }
    }
    return all;
}

void ProductKernels::matmul_fast(Recorder& recorder, const MatmulParams& params, const MatmulPlan& plan) {
    const DeviceCapabilities& caps = capabilities();
    const uint32_t row_tiles = ceil_div(plan.rows, plan.row_tile);
    const uint32_t subgroup = caps.subgroup_size;
    const DispatchInfo info = product_info(variant_name(plan), params, plan);
    if (plan.variant == MatmulVariant::kGemv) {
        const uint32_t wished = kGemvThreads[plan.tile], size = threads(wished, wished);
        const Kernel* k = kernel(
            info.name, {size, static_cast<uint32_t>(plan.weight_type), gemv_unroll(wished, plan.k_per_split, subgroup)},
            subgroup);
        if (k == nullptr) return;
        recorder.dispatch(*k, params, plan.rows, ceil_div(params.n, std::max(size / subgroup, 1u)), plan.n_splits,
                          info);
    } else if (plan.variant == MatmulVariant::kCoopmat) {
        record_coopmat(recorder, info.name, params, params, plan, plan.column_tile, Activation::kSilu);
    } else {
        const Coopmat2Tile& tile = kCoopmat2Tiles[plan.tile];
        const Kernel* k = kernel(info.name, {tile.threads, tile.rows, tile.columns, tile.k, params.w_stride}, subgroup);
        if (k == nullptr) return;
        recorder.dispatch(*k, params, row_tiles, ceil_div(params.n, tile.columns), 1, info);
    }
}

const Kernel* ProductKernels::coopmat_kernel(const char* name, const MatmulPlan& plan, uint32_t stride,
                                             Activation activation, bool in_turns, uint32_t units, uint32_t norm_tiles,
                                             uint32_t y_order) {
    const uint32_t subgroup = capabilities().subgroup_size;
    const CoopmatTile& tile = kCoopmatTiles[plan.tile];
    return kernel(name,
                  {tile.subgroups * subgroup, tile.columns, tile.rows, tile.k, tile.subgroups_n, stride, subgroup,
                   tile.late ? 1u : 0u, static_cast<uint32_t>(activation), plan.whole_rows / tile.rows,
                   in_turns ? 1u : 0u, units, norm_tiles, norm_tiles > 0 ? deferred_norm_rows(plan.rows) : 0, y_order},
                  subgroup);
}

bool ProductPlanner::adds_adapters(const MatmulPlan& plan) const {
    return plan.variant == MatmulVariant::kCoopmat && !options().batch_invariant &&
           ladder().has_adapters(plan.weight_type);
}

void ProductKernels::matmul_with_adapters(Recorder& recorder, MatmulLoraParams params, const MatmulPlan& plan) {
    CHECK(adds_adapters(plan));
    params.product.k_per_split = plan.k_per_split;
    record_coopmat(recorder, coopmat_name(plan, false, true), params, params.product, plan, plan.column_tile,
                   Activation::kSilu);
}

void ProductKernels::matmul_gated(Recorder& recorder, MatmulParams params, const MatmulPlan& plan,
                                  Activation activation, uint32_t y_order) {
    params.k_per_split = plan.k_per_split;
    if (plan.variant == MatmulVariant::kWarpgroup) {
        CHECK(activation == Activation::kSilu);
        return matmul_warpgroup(recorder, params, plan, true, y_order);
    }
    record_coopmat(recorder, coopmat_name(plan, true, false), params, params, plan, plan.column_tile / 2, activation, 0,
                   y_order);
}

bool ProductPlanner::adds_adapters_gated(const MatmulPlan& plan) const {
    return ladder().has_gated_adapters(plan.weight_type);
}

void ProductKernels::matmul_gated_with_adapters(Recorder& recorder, MatmulLoraParams params, const MatmulPlan& plan,
                                                Activation activation, uint32_t y_order) {
    CHECK(adds_adapters_gated(plan));
    params.product.k_per_split = plan.k_per_split;
    record_coopmat(recorder, coopmat_name(plan, true, true), params, params.product, plan, plan.column_tile / 2,
                   activation, 0, y_order);
}

bool ProductPlanner::may_follow_residual(const MatmulPlan& plan) const {
    return plan.variant == MatmulVariant::kCoopmat && plan.row_tile == kDeferredRows &&
           ladder().has_residual(plan.weight_type);
}

void ProductKernels::matmul_deferred(Recorder& recorder, MatmulDeferredParams params, const MatmulPlan& plan,
                                     uint32_t n_tiles) {
    CHECK(may_follow_residual(plan));
    params.product.k_per_split = plan.k_per_split;
    record_coopmat(
        recorder,
        plan.weight_type == ScalarType::kBf16 ? "matmul_coopmat_deferred_bf16" : "matmul_coopmat_deferred_f16", params,
        params.product, plan, plan.column_tile, Activation::kSilu, n_tiles);
}

void ProductKernels::matmul_gated_deferred(Recorder& recorder, MatmulDeferredParams params, const MatmulPlan& plan,
                                           uint32_t n_tiles, Activation activation) {
    CHECK(may_follow_residual(plan));
    params.product.k_per_split = plan.k_per_split;
    record_coopmat(recorder,
                   plan.weight_type == ScalarType::kBf16 ? "matmul_coopmat_gated_deferred_bf16"
                                                         : "matmul_coopmat_gated_deferred_f16",
                   params, params.product, plan, plan.column_tile / 2, activation, n_tiles);
}

template <typename Params>
void ProductKernels::record_coopmat(Recorder& recorder, const char* name, const Params& params,
                                    const MatmulParams& product, const MatmulPlan& plan, uint32_t columns,
                                    Activation activation, uint32_t norm_tiles, uint32_t y_order) {
    CHECK(!plan.x_in_blocks || plan.tile == kBlocksTile);
    MatmulParams whole = product;
    whole.n *= plan.column_tile / columns;
    const uint32_t row_tiles = ceil_div(plan.rows, plan.row_tile), whole_tiles = plan.whole_rows / plan.row_tile,
                   column_tiles = ceil_div(product.n, columns);
    const DispatchInfo info = product_info(name, whole, plan);
    const uint32_t at_once = workgroups_at_once(kCoopmatTiles[plan.tile], capabilities());
    const bool come_and_go = plan.n_splits * column_tiles >= kRoundsInTurns * at_once;
    // The late tiles' loads have no room for another tile's.
    const bool in_turns = come_and_go && row_tiles * plan.n_splits == 1 && !kCoopmatTiles[plan.tile].late;
    const bool by_unit = row_tiles == 1 && (in_turns || !come_and_go);
    const Kernel* k = coopmat_kernel(name, plan, product.w_stride, activation, in_turns,
                                     by_unit ? capabilities().n_compute_units_hint : 0, norm_tiles, y_order);
    if (k == nullptr) return;
    if (whole_tiles == 0)
        recorder.dispatch(*k, params, row_tiles, plan.n_splits, in_turns ? at_once : column_tiles, info);
    else
        recorder.dispatch(*k, params, std::max(whole_tiles, row_tiles - whole_tiles), column_tiles, plan.n_splits + 1,
                          info);
}

}  // namespace lorad::gpu
