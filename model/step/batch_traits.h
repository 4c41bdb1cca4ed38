// The traits of a batch that the plan of its step depends on, found in one scan. Pure: no device.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>

#include "gpu/kernels/consumer_shape.h"
#include "gpu/kernels/scalar_type.h"
#include "gpu/kernels/step_state.h"
#include "model/step/step_batch.h"
#include "model/weights/lora_table.h"

namespace lorad::model {

// LoraTable::traits.
using SlotLookup = std::function<const SlotTraits&(uint32_t slot)>;

// Rows whose attention is computed one by one (in runs of fewer than kTileRowsMin neighbours of one sequence), and the
// tiles that longer runs are cut into.
struct RowRuns {
    uint32_t n_single_rows = 0;
    uint32_t n_tiles = 0;
};

struct BatchTraits {
    uint32_t n_rows = 0, n_outputs = 0, n_masks = 0;
    uint32_t n_context = 0;  // tokens that the row that sees most sees
    bool is_merged = false;  // all rows run on the merged weights

    // Attention. `runs` is empty where TraitsWish::tile_rows is 0.
    RowRuns runs;
    bool has_lone_rows = false;  // each row is the only one of its sequence: decodes alone

    // Adapters. A merged batch has the level kNone.
    gpu::LoraLevel lora = gpu::LoraLevel::kNone;
    bool has_extras = false;     // some adapter changes more than the linear modules
    uint32_t rank_max = 0;       // of all the batch's adapters and their modules
    uint32_t types = 0;          // of their matrices: 1 << ScalarType
    bool has_long_runs = false;  // on the average 32 neighbouring rows and more have one adapter
    // the most runs of rows with one adapter in any kAdapterTileRows rows, which gated_act_matrix takes together
    uint32_t most_runs = 0;
    // StackedColumns::mean_steps by group; none where the adapters find no room as more k of the products, or nobody
    // asked.
    std::optional<std::array<double, gpu::kLoraGroups>> stacked_steps;

    // Outputs.
    bool has_rules = false, has_changes = false, has_logprobs = false;
    bool wants_logits = false;  // on the host
};

// The parts of a scan that not every step needs.
struct TraitsWish {
    uint32_t tile_rows = 0;  // the most rows of a tile of attention; 0: there are no tiles
    // of the weights, where the products of so many rows may have adapters as more k
    std::optional<gpu::ScalarType> stacked_type;
};
BatchTraits traits_of(const StepBatch& batch, const SlotLookup& slots, const TraitsWish& wish);

// Largest of all the batch's adapters, as SlotTraits::ranks.
std::array<uint32_t, kModuleGroups> largest_ranks(const StepBatch& batch, const SlotLookup& slots);

// Calls with (begin, end) for each run of rows of one sequence at neighbouring positions.
template <typename F>
void for_each_run(const StepBatch& batch, F&& f) {
    const std::span<const BatchRow> rows = batch.rows();
    for (uint32_t begin = 0, end = 0; begin < rows.size(); begin = end) {
        const auto follows = [&](uint32_t i) {
            return rows[i].table_begin == rows[begin].table_begin &&
                   rows[i].position == rows[begin].position + (i - begin);
        };
        while (end < rows.size() && follows(end)) ++end;
        f(begin, end);
    }
}

}  // namespace lorad::model
