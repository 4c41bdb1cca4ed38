#include "gpu/kernels/products/coopmat_tiles.h"

#include <algorithm>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kLargestRows = 128;  // of a tile that weights are read once for
constexpr uint32_t kSmallestRows = 16;
constexpr double kMixedGain = 0.98;      // of the time without whole rows, which they must stay below
constexpr uint32_t kInvariantRows = 32;  // whose cut of k all numbers of rows take with batch_invariant
constexpr double kFillSteps = 1.2;

// For workgroups_at_once().
constexpr uint32_t kAtOnceMax = 3;             // on a multiprocessor
constexpr uint32_t kRegisters = 65536;         // of a multiprocessor
constexpr uint32_t kRegistersForTheRest = 60;  // of a thread, beside its sums and the words of the next step

uint32_t staged_words(const CoopmatTile& tile) { return (tile.columns + tile.rows) * (tile.k / 8 + 1); }

struct Split {
    double cost = std::numeric_limits<double>::infinity();
    uint32_t n_splits = 1, k_per_split = 0, whole_rows = 0;
};

// Rows of x come from the caches, but their instructions and products count too.
double bytes_of_step(const CoopmatTile& tile) { return tile.k * 2.0 * (tile.columns + 0.75 * tile.rows); }

// Time of a product, in bytes that one multiprocessor moves: the busiest one's workgroups times their steps (the
// measured
// grids are bound by this, not by the sum of bytes), kFillSteps for filling and emptying each, and the traffic of
// partial results. `k_per_split` 0 tries all.
Split best_split(const CoopmatTile& tile, const TileRequest& request, uint32_t units, uint32_t k_per_split) {
    const uint32_t steps = request.stride / tile.k;
    const uint32_t tiles = ceil_div(request.rows, tile.rows) * ceil_div(request.n, tile.columns);
    Split best;
    if (tile.whole_k && tiles < kWideRounds * units) return best;
    const double step_bytes = bytes_of_step(tile);
    // A multiprocessor needs about this many bytes in flight.
    const double saturating = std::max(1.0, 20.0 * 1024 / (tile.k * 2.0 * tile.columns));
    const uint32_t max_splits = tile.whole_k ? 1 : std::min(request.max_splits, steps);
    for (uint32_t n_splits = 1; n_splits <= max_splits; ++n_splits) {
        const uint32_t split_steps = ceil_div(steps, n_splits);
        if (ceil_div(steps, split_steps) != n_splits) continue;
        if (k_per_split != 0 && split_steps * tile.k != k_per_split) continue;
        const uint32_t most = ceil_div(tiles * n_splits, units);
        const double busiest = std::max<double>(tile.pairs ? round_up(most, 2) : most, saturating);
        const double partials = 8.0 * (n_splits - 1) * request.rows * request.n / units;
        const double cost = tile.factor * busiest * (split_steps + kFillSteps) * step_bytes + partials;
        if (cost < best.cost * 0.995) best = {cost, n_splits, split_steps * tile.k};
    }
    return best;
}

// Returns true if some rows may be whole and others split. Steps of fewer rows are decodes, whose attention takes only
// one kind of sums.
bool may_mix(const CoopmatTile& tile, const TileRequest& request) {
    return tile.pairs && request.rows > kLargestRows && !request.gated && !request.batch_invariant;
}

// The time of tiles whose first rows are whole, k of the others cut into n_splits: long workgroups, begun first, then
// short ones, each wherever one has ended, two on a multiprocessor. In best_split's measure.
Split best_mixed(const CoopmatTile& tile, const TileRequest& request, uint32_t units, uint32_t n_splits) {
    Split best;
    const uint32_t steps = request.stride / tile.k, split_steps = ceil_div(steps, n_splits);
    if (!may_mix(tile, request) || ceil_div(steps, split_steps) != n_splits) return best;
    const uint32_t slots = 2 * units;
    const uint32_t row_tiles = ceil_div(request.rows, tile.rows), column_tiles = ceil_div(request.n, tile.columns);
    const double long_time = steps + kFillSteps, short_time = split_steps + kFillSteps;
    for (uint32_t whole = 1; whole < row_tiles; ++whole) {
        const uint32_t n_long = whole * column_tiles, n_short = (row_tiles - whole) * column_tiles * n_splits;
        const uint32_t rounds = ceil_div(n_long, slots),
                       beside = (rounds * slots - n_long) * static_cast<uint32_t>(long_time / short_time);
        const double time =
            rounds * long_time + (n_short > beside ? ceil_div(n_short - beside, slots) * short_time : 0.0);
        const double partials = 8.0 * (n_splits - 1) * (request.rows - whole * tile.rows) * request.n / units;
        const double cost = tile.factor * 2 * time * bytes_of_step(tile) + partials;
        if (cost < best.cost) best = {cost, n_splits, split_steps * tile.k, whole * tile.rows};
    }
    return best;
}

}  // namespace

uint32_t best_whole_rows(const CoopmatTile& tile, const TileRequest& request, uint32_t n_splits,
                         const DeviceCapabilities& caps) {
    return best_mixed(tile, request, multiprocessors(caps), n_splits).whole_rows;
}

uint32_t workgroups_at_once(const CoopmatTile& tile, const DeviceCapabilities& caps) {
    const uint32_t threads = tile.subgroups * caps.subgroup_size;
    const uint32_t sums = ceil_div(tile.rows * tile.columns, threads),
                   words = ceil_div((tile.rows + tile.columns) * (tile.k / 8), threads);
    const uint32_t of_a_unit = kRegisters / (threads * (sums + 4 * words + kRegistersForTheRest));
    return std::clamp(of_a_unit, 1u, kAtOnceMax) * multiprocessors(caps);
}

bool fits(const CoopmatTile& tile, uint32_t n, uint32_t stride, const DeviceCapabilities& caps) {
    const uint32_t row_slots = tile.rows + 1;  // of matmul_adapters.glsl, 4 bytes each
    // All threads together fetch whole rows of w with each load.
    const uint32_t threads = tile.subgroups * caps.subgroup_size, words = tile.k / 8;
    if (threads % words != 0 || tile.columns % (threads / words) != 0) return false;
    return stride % tile.k == 0 && padded(n) >= tile.columns &&
           staged_words(tile) * 16 + row_slots * 4 <= caps.shared_memory_bytes && threads <= threads_max(caps);
}

bool gates(const CoopmatTile& tile, uint32_t subgroup_size) {
    const uint32_t load_rows = tile.subgroups * subgroup_size / (tile.k / 8);
    const uint32_t result_words = tile.rows * ((interleaves(tile) ? tile.columns : tile.columns / 2) / 4 + 1);
    return tile.columns / 2 % load_rows == 0 && result_words <= staged_words(tile);
}

TileChoice choose_tile(const DeviceCapabilities& caps, const TileRequest& request) {
    uint32_t k_per_split = 0;
    if (request.batch_invariant && request.rows != kInvariantRows) {
        TileRequest invariant = request;
        invariant.rows = kInvariantRows;
        k_per_split = choose_tile(caps, invariant).k_per_split;
    }
    TileChoice best;
    for (uint32_t tile_idx = 0; tile_idx < kCoopmatTiles.size(); ++tile_idx) {
        CoopmatTile tile = kCoopmatTiles[tile_idx];
        const bool in_fragments = request.in_fragments && tile_idx == kFragmentsTile;
        if (in_fragments) tile.factor *= kFragmentsGain;
        if (!fits(tile, request.n, request.stride, caps) || (request.gated && !gates(tile, caps.subgroup_size)))
            continue;
        // A cut of k that one tile takes must suit a tile of any number of rows: the first one's does.
        if (request.batch_invariant && tile.k != kCoopmatTiles[0].k) continue;
        // Enough rows for the weights to be read once, where a tile can be that large, and not twice as many as there
        // are.
        const bool too_small = tile.rows < std::min(request.rows, kLargestRows) / 2;
        const bool too_large = tile.rows > kSmallestRows && tile.rows >= 2 * request.rows;
        if (tile_idx != 0 && (too_small || too_large)) continue;
        Split split = best_split(tile, request, multiprocessors(caps), k_per_split);
        for (uint32_t n_splits = 2; n_splits <= std::min(request.max_splits, kMixedSplits); ++n_splits) {
            const Split mixed = best_mixed(tile, request, multiprocessors(caps), n_splits);
            if (mixed.cost < split.cost * (split.whole_rows == 0 ? kMixedGain : 1.0)) split = mixed;
        }
        if (split.cost < best.cost)
            best = {tile_idx, split.cost, split.n_splits, split.k_per_split, split.whole_rows, in_fragments};
    }
    return best;
}

}  // namespace lorad::gpu
