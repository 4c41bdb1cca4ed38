// Plans and recordings of the matmul variants above the portable ones: matvec with 16-bit activations, KHR cooperative
// matrices, NV cooperative matrices 2. docs/PERFORMANCE.md has the measurements behind the tables.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gpu/kernel_modules.h"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "proto/base/format.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kGemvMaxRows = 2;        // from three rows on, a 16-row cooperative-matrix tile is faster
constexpr uint32_t kCoopmat2MinRows = 1536;  // below, splits of k matter more than the larger tile
constexpr uint32_t kUnitsFallback = 64;     // multiprocessors where the driver does not tell

// matmul_gemv. MatmulPlan::column_tile is the rows of w per subgroup.
constexpr uint32_t kSubgroupsPerUnit = 24;  // that keep a multiprocessor's loads in flight
struct GemvTile {
    uint32_t threads, column_tile, unroll, ahead;  // unroll 0: by the length of k
};
constexpr std::array kGemvTiles = {
    GemvTile{256, 1, 0, 0}, GemvTile{1024, 1, 0, 0},                         // one row
    GemvTile{128, 1, 2, 1}, GemvTile{256, 4, 1, 0}, GemvTile{128, 2, 4, 1},  // two rows: otherwise, wide, deep
};

uint32_t gemv_tile(uint32_t n, uint32_t stride, uint32_t row_tile) {
    const bool wide = n >= 16384;
    const bool deep = stride >= 8192;
    if (row_tile == 1) return wide || deep ? 1 : 0;
    return wide ? 3 : deep ? 4 : 2;
}

// Loads in flight per thread: four or more, and such that few are left over, which are not overlapped.
uint32_t gemv_unroll(const GemvTile& tile, uint32_t n_k, uint32_t subgroup_size) {
    if (tile.unroll != 0) return tile.unroll;
    const uint32_t loads = std::max(ceil_div(n_k, 8 * subgroup_size), 1u);
    if (tile.threads == 256 && loads % 7 == 0) return 7;
    if (loads >= 8) return 4;
    uint32_t best = 1;
    for (uint32_t unroll = 2; unroll <= 6; unroll++) {
        if (unroll <= n_k / (8 * subgroup_size) && loads % unroll <= loads % best) best = unroll;
    }
    return best;
}

// matmul_coopmat: one workgroup's part of y and of a k step.
struct CoopmatTile {
    uint32_t rows, columns, k;
    uint32_t subgroups, subgroups_n;
    double factor;         // measured time over what best_split() expects, relative to the others
    bool late = false;     // see matmul_coopmat.comp
    bool whole_k = false;  // never split: for wide matrices, whose tiles fill the device anyway
    bool pairs = false;    // two fill a multiprocessor, and one alone takes it as long as both
};
// The first one fits every matrix. Factors fitted to 40 products of 16 to 2,048 rows on an H200: what is chosen takes 1.01 of the
// best candidate's time on average (`lorad-bench kernels --sweep` measures all candidates).
constexpr std::array kCoopmatTiles = {
    CoopmatTile{16, 64, 64, 4, 4, 1.23},   CoopmatTile{16, 64, 64, 4, 4, 0.93, false, true}, CoopmatTile{16, 64, 128, 4, 4, 1.00},
    CoopmatTile{16, 128, 64, 8, 8, 1.28},  CoopmatTile{32, 64, 64, 4, 4, 0.98},              CoopmatTile{32, 128, 64, 8, 8, 0.94},
    CoopmatTile{32, 64, 128, 4, 4, 0.81},  CoopmatTile{32, 128, 128, 4, 4, 0.88},            CoopmatTile{64, 192, 64, 8, 4, 1.11},
    CoopmatTile{64, 128, 64, 4, 2, 0.97},  CoopmatTile{96, 192, 64, 8, 4, 1.03},             CoopmatTile{96, 128, 64, 4, 2, 0.89, true},
    CoopmatTile{128, 128, 64, 4, 2, 0.86, true, false, true},                                CoopmatTile{128, 192, 64, 8, 4, 1.02, true},
};
constexpr uint32_t kLargestCoopmatRows = 128;  // of a tile that weights are read once for
constexpr uint32_t kSmallestCoopmatRows = 16;

// The matrix and the device can take the tile.
bool fits(const CoopmatTile& tile, uint32_t n, uint32_t stride, const DeviceCapabilities& caps) {
    return stride % tile.k == 0 && padded(n) >= tile.columns &&
           (tile.columns + tile.rows) * (tile.k / 8 + 1) * 16 <= caps.shared_memory_bytes &&
           tile.subgroups * caps.subgroup_size <= caps.max_workgroup_invocations;
}

// A workgroup can have the gate and the up rows of the same columns, in halves, and its threads load either.
bool gates(const CoopmatTile& tile, uint32_t subgroup_size) {
    const uint32_t load_rows = tile.subgroups * subgroup_size / (tile.k / 8);
    return tile.columns % (tile.subgroups_n * 32) == 0 && tile.columns / 2 % load_rows == 0;
}

// matmul_coopmat2.
struct Coopmat2Tile {
    uint32_t rows, columns, k, threads;
};
constexpr std::array kCoopmat2Tiles = {Coopmat2Tile{128, 256, 64, 256}, Coopmat2Tile{128, 128, 64, 256}};

constexpr double kDispatchBytes = 100e3;  // what a multiprocessor moves while a dispatch begins and ends

struct SplitPlan {
    double cost = std::numeric_limits<double>::infinity();
    uint32_t n_splits = 1, k_per_split = 0;
};

// Time of a product, in bytes that one multiprocessor moves: the busiest one's workgroups times their steps (the measured
// grids are bound by this, not by the sum of bytes), a step and a half for filling and emptying each, and the traffic of
// partial results. `k_per_split` 0 tries all.
SplitPlan best_split(const CoopmatTile& tile, uint32_t n, uint32_t stride, uint32_t rows, uint32_t units, uint32_t max_splits,
                     uint32_t k_per_split) {
    const uint32_t steps = stride / tile.k;
    const uint32_t tiles = ceil_div(rows, tile.rows) * ceil_div(n, tile.columns);
    // Rows of x come from the caches, but their instructions and products count too.
    const double step_bytes = tile.k * 2.0 * (tile.columns + 0.75 * tile.rows);
    // A multiprocessor needs about this many bytes in flight.
    const double saturating = std::max(1.0, 20.0 * 1024 / (tile.k * 2.0 * tile.columns));
    SplitPlan best;
    for (uint32_t n_splits = 1; n_splits <= std::min(max_splits, steps); n_splits++) {
        const uint32_t split_steps = ceil_div(steps, n_splits);
        if (ceil_div(steps, split_steps) != n_splits) continue;
        if (k_per_split != 0 && split_steps * tile.k != k_per_split) continue;
        const uint32_t most = ceil_div(tiles * n_splits, units);
        const double busiest = std::max<double>(tile.pairs ? round_up(most, 2) : most, saturating);
        const double partials = 8.0 * (n_splits - 1) * rows * n / units;
        const double cost = tile.factor * busiest * (split_steps + 1.5) * step_bytes + partials;
        if (cost < best.cost * 0.995) best = {cost, n_splits, split_steps * tile.k};
    }
    return best;
}

struct TileChoice {
    uint32_t tile = 0;
    SplitPlan split;
};

// The cheapest of the tiles that `may` allows; infinitely dear if there is none.
template <typename May>
TileChoice choose_tile(const DeviceCapabilities& caps, uint32_t n, uint32_t stride, uint32_t rows, uint32_t max_splits,
                       uint32_t k_per_split, May may) {
    const uint32_t units = caps.n_compute_units_hint != 0 ? caps.n_compute_units_hint : kUnitsFallback;
    TileChoice best;
    for (uint32_t tile_idx = 0; tile_idx < kCoopmatTiles.size(); tile_idx++) {
        const CoopmatTile& tile = kCoopmatTiles[tile_idx];
        if (!fits(tile, n, stride, caps) || !may(tile)) continue;
        // Enough rows for the weights to be read once, where a tile can be that large, and not twice as many as there are.
        const bool too_small = tile.rows < std::min(rows, kLargestCoopmatRows) / 2;
        const bool too_large = tile.rows > kSmallestCoopmatRows && tile.rows >= 2 * rows;
        if (tile_idx != 0 && (too_small || too_large)) continue;
        const SplitPlan split = best_split(tile, n, stride, rows, units, tile.whole_k ? 1 : max_splits, k_per_split);
        if (split.cost < best.split.cost) best = {tile_idx, split};
    }
    return best;
}

void take(MatmulPlan& plan, const TileChoice& choice) {
    plan.tile = choice.tile;
    plan.row_tile = kCoopmatTiles[choice.tile].rows;
    plan.column_tile = kCoopmatTiles[choice.tile].columns;
    plan.n_splits = choice.split.n_splits;
    plan.k_per_split = choice.split.k_per_split;
}

const char* coopmat_name(const MatmulPlan& plan, bool gated, bool adapters) {
    const bool bf16 = plan.weight_type == ScalarType::kBf16;
    if (gated && adapters) return bf16 ? "matmul_coopmat_gated_lora_bf16" : "matmul_coopmat_gated_lora_f16";
    if (gated) return bf16 ? "matmul_coopmat_gated_bf16" : "matmul_coopmat_gated_f16";
    return bf16 ? "matmul_coopmat_lora_bf16" : "matmul_coopmat_lora_f16";
}

}  // namespace

const char* variant_name(const MatmulPlan& plan) {
    const bool bf16 = plan.weight_type == ScalarType::kBf16;
    switch (plan.variant) {
        case MatmulVariant::kMatvec: return "matmul_matvec";
        case MatmulVariant::kLanes: return "matmul_lanes";
        case MatmulVariant::kTiled: return "matmul_tiled";
        case MatmulVariant::kGemv: return "matmul_gemv";
        case MatmulVariant::kCoopmat: return bf16 ? "matmul_coopmat_bf16" : "matmul_coopmat_f16";
        case MatmulVariant::kCoopmat2: return bf16 ? "matmul_coopmat2_bf16" : "matmul_coopmat2_f16";
    }
    return "matmul";
}

MatmulVariant KernelSet::fast_variant(uint32_t n, uint32_t rows, ScalarType type) const {
    if (options_.batch_invariant) return MatmulVariant::kCoopmat;
    if (rows <= kGemvMaxRows) return MatmulVariant::kGemv;
    const bool many = rows >= kCoopmat2MinRows && padded(n) % kCoopmat2Tiles.back().columns == 0;
    return many && ladder_.has2(type) ? MatmulVariant::kCoopmat2 : MatmulVariant::kCoopmat;
}

MatmulPlan KernelSet::plan_fast(MatmulVariant variant, uint32_t n, uint32_t k, ScalarType type, uint32_t rows,
                                uint32_t max_splits) const {
    const DeviceCapabilities& caps = device_.capabilities();
    const uint32_t stride = padded(k);
    MatmulPlan plan;
    plan.variant = variant;
    plan.rows = rows;
    plan.weight_type = plan.act_type = type;
    plan.k_per_split = stride;
    if (variant == MatmulVariant::kGemv) {
        plan.row_tile = std::min(rows, kGemvMaxRows);
        plan.tile = gemv_tile(n, stride, plan.row_tile);
        plan.column_tile = kGemvTiles[plan.tile].column_tile;
        // A matrix of few rows is cut along k until there are subgroups enough.
        const uint32_t units = caps.n_compute_units_hint != 0 ? caps.n_compute_units_hint : kUnitsFallback;
        const uint32_t subgroups = ceil_div(n, plan.column_tile) * ceil_div(rows, plan.row_tile);
        const uint32_t per_load = 8 * caps.subgroup_size;
        const uint32_t n_splits = std::clamp(units * kSubgroupsPerUnit / subgroups, 1u,
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
    // With batch_invariant a row's sum must be cut alike for every number of rows: as for 32.
    uint32_t k_per_split = 0;
    constexpr uint32_t kInvariantRows = 32;
    if (options_.batch_invariant && rows != kInvariantRows) {
        k_per_split = plan_fast(variant, n, k, type, kInvariantRows, max_splits).k_per_split;
    }
    take(plan, choose_tile(caps, n, stride, rows, max_splits, k_per_split, [](const CoopmatTile&) { return true; }));
    return plan;
}

std::optional<MatmulPlan> KernelSet::plan_gated(uint32_t ffn, uint32_t k, ScalarType type, uint32_t rows, uint32_t max_splits) const {
    const DeviceCapabilities& caps = device_.capabilities();
    if (!ladder_.has_gated(type) || options_.batch_invariant || options_.gated == GatedProducts::kNever || ffn % kWeightAlign != 0) return std::nullopt;
    const uint32_t n = 2 * ffn, stride = padded(k);
    if (fast_variant(n, rows, type) != MatmulVariant::kCoopmat) return std::nullopt;
    const TileChoice apart = choose_tile(caps, n, stride, rows, max_splits, 0, [](const CoopmatTile&) { return true; });
    const TileChoice together = choose_tile(caps, n, stride, rows, 1, 0, [&](const CoopmatTile& tile) { return gates(tile, caps.subgroup_size); });
    // Sums written and read once more, and a dispatch of its own.
    const uint32_t units = caps.n_compute_units_hint != 0 ? caps.n_compute_units_hint : kUnitsFallback;
    const double saved = 8.0 * apart.split.n_splits * rows * n / units + kDispatchBytes;
    if (!std::isfinite(together.split.cost)) return std::nullopt;
    if (options_.gated != GatedProducts::kAlways && together.split.cost > apart.split.cost + saved) return std::nullopt;
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
        return lorad::format("coopmat {}x{}x{} sub{}/{}{}", t.rows, t.columns, t.k, t.subgroups, t.subgroups_n, t.late ? " late" : "");
    }
    if (plan.variant == MatmulVariant::kCoopmat2) {
        const Coopmat2Tile& t = kCoopmat2Tiles[plan.tile];
        return lorad::format("coopmat2 {}x{}x{} thr{}", t.rows, t.columns, t.k, t.threads);
    }
    return variant_name(plan);
}

std::vector<MatmulPlan> KernelSet::matmul_candidates(uint32_t n, uint32_t k, ScalarType type, uint32_t rows, uint32_t max_splits) const {
    std::vector<MatmulPlan> all;
    const DeviceCapabilities& caps = device_.capabilities();
    const uint32_t units = std::max(caps.n_compute_units_hint, 1u), stride = padded(k);
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
        if (!fits(tile, n, stride, caps) || tile.rows >= rows * 2 + 15 || (tile.rows < rows && tile.rows < 64)) continue;
        plan.row_tile = tile.rows;
        plan.column_tile = tile.columns;
        add(tile.k);
    }
    if (rows >= 512 && ladder_.has2(type)) {
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

void KernelSet::matmul_fast(Recorder& recorder, const MatmulParams& params, const MatmulPlan& plan) {
    const DeviceCapabilities& caps = device_.capabilities();
    const uint32_t row_tiles = ceil_div(plan.rows, plan.row_tile);
    const uint32_t subgroup = caps.subgroup_size;
    const DispatchInfo info = product_info(variant_name(plan), params, plan);
    if (plan.variant == MatmulVariant::kGemv) {
        const GemvTile& tile = kGemvTiles[plan.tile];
        const uint32_t size = threads(tile.threads, tile.threads);
        const Kernel* k = kernel(info.name, {size, static_cast<uint32_t>(plan.weight_type), plan.row_tile, tile.column_tile,
                                             gemv_unroll(tile, plan.k_per_split, subgroup), tile.ahead}, subgroup);
        if (k == nullptr) return;
        const uint32_t rows_of_w = std::max(size / subgroup, 1u) * tile.column_tile;
        recorder.dispatch(*k, params, row_tiles, ceil_div(params.n, rows_of_w), plan.n_splits, info);
    } else if (plan.variant == MatmulVariant::kCoopmat) {
        record_coopmat(recorder, info.name, params, params, plan, plan.column_tile, Activation::kSilu);
    } else {
        const Coopmat2Tile& tile = kCoopmat2Tiles[plan.tile];
        const Kernel* k = kernel(info.name, {tile.threads, tile.rows, tile.columns, tile.k, params.w_stride}, subgroup);
        if (k == nullptr) return;
        recorder.dispatch(*k, params, row_tiles, ceil_div(params.n, tile.columns), 1, info);
    }
}

const Kernel* KernelSet::coopmat_kernel(const char* name, const MatmulPlan& plan, uint32_t stride, Activation activation) {
    const uint32_t subgroup = device_.capabilities().subgroup_size;
    const CoopmatTile& tile = kCoopmatTiles[plan.tile];
    return kernel(name, {tile.subgroups * subgroup, tile.columns, tile.rows, tile.k, tile.subgroups_n, stride, subgroup, tile.late ? 1u : 0u,
                         static_cast<uint32_t>(activation)},
                  subgroup);
}

bool KernelSet::adds_adapters(const MatmulPlan& plan) const {
    return plan.variant == MatmulVariant::kCoopmat && !options_.batch_invariant && has_kernel_module(coopmat_name(plan, false, true));
}

void KernelSet::matmul_with_adapters(Recorder& recorder, MatmulLoraParams params, const MatmulPlan& plan) {
    CHECK(adds_adapters(plan));
    params.product.k_per_split = plan.k_per_split;
    record_coopmat(recorder, coopmat_name(plan, false, true), params, params.product, plan, plan.column_tile, Activation::kSilu);
}

void KernelSet::matmul_gated(Recorder& recorder, const MatmulParams& params, const MatmulPlan& plan, Activation activation) {
    record_coopmat(recorder, coopmat_name(plan, true, false), params, params, plan, plan.column_tile / 2, activation);
}

void KernelSet::matmul_gated_with_adapters(Recorder& recorder, const MatmulLoraParams& params, const MatmulPlan& plan, Activation activation) {
    CHECK(adds_adapters(plan));
    record_coopmat(recorder, coopmat_name(plan, true, true), params, params.product, plan, plan.column_tile / 2, activation);
}

template <typename Params>
void KernelSet::record_coopmat(Recorder& recorder, const char* name, const Params& params, const MatmulParams& product, const MatmulPlan& plan,
                               uint32_t columns, Activation activation) {
    const Kernel* k = coopmat_kernel(name, plan, product.w_stride, activation);
    if (k == nullptr) return;
    MatmulParams whole = product;
    whole.n *= plan.column_tile / columns;
    recorder.dispatch(*k, params, ceil_div(plan.rows, plan.row_tile), ceil_div(product.n, columns), plan.n_splits, product_info(name, whole, plan));
}

}  // namespace lorad::gpu
