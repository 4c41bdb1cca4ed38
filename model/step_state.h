// Turns a batch into the bytes that the kernels read. Pure: no device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "model/lora_table.h"
#include "model/step_batch.h"
#include "model/step_shape.h"

namespace lorad::model {

// LoraTable::traits.
using SlotLookup = std::function<const SlotTraits&(uint32_t slot)>;

// What the batch's rows need of LoRA; whether some adapter has extras.
gpu::LoraLevel lora_level(const StepBatch& batch, const SlotLookup& slots);
bool has_extras(const StepBatch& batch, const SlotLookup& slots);

// Largest of all the batch's adapters, as SlotTraits::ranks: of the groups q k v, o, gate up, down.
std::array<uint32_t, 4> largest_ranks(const StepBatch& batch, const SlotLookup& slots);
// Of all of them, as SlotTraits::types.
uint32_t types_of_adapters(const StepBatch& batch, const SlotLookup& slots);

// Rows in runs of fewer than kTileRowsMin neighbours, and the tiles of at most so many rows that write_step_state makes of the longer ones.
struct RowRuns {
    uint32_t n_single_rows = 0;
    uint32_t n_tiles = 0;
};
RowRuns row_runs(const StepBatch& batch, uint32_t tile_rows);

// Whether each row is the only one of its sequence, so that none sees another's key and value.
bool has_lone_rows(const StepBatch& batch);

// Level kPlain, and the runs of rows with one adapter are long on average.
bool has_long_runs(const StepBatch& batch);
// Of rows with one adapter, in any kAdapterTileRows rows that gated_act_matrix takes together.
uint32_t most_runs(const StepBatch& batch);

// Bytes that write_step_state will write for this batch and shape.
uint64_t step_state_bytes(const StepBatch& batch, const StepShape& shape);

// Writes header, rows, output rows, LoRA segments, uses, attention tiles, rows in none and block tables where StepLayout says. Logits of output i that are wanted
// on the host go to row readback_begin + i. `to` has at least step_state_bytes; gaps for rows beyond the batch stay as they are.
void write_step_state(const StepBatch& batch, const StepShape& shape, const SlotLookup& slots, uint32_t readback_begin,
                      uint32_t n_q_heads, std::span<std::byte> to);

}  // namespace lorad::model
