// Turns a batch into the bytes that the kernels read. Pure: no device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "model/step/batch_traits.h"
#include "model/step/step_batch.h"
#include "model/step/step_shape.h"
#include "model/weights/lora_table.h"

namespace lorad::model {

// Bytes that write_step_state will write for this batch and shape.
uint64_t step_state_bytes(const StepBatch& batch, const StepShape& shape);

// Writes header, rows, output rows, LoRA segments, uses, attention tiles, rows in none and block tables where
// StepLayout says. Logits of output i that are wanted on the host go to row readback_begin + i. `to` has at least
// step_state_bytes; gaps for rows beyond the batch stay as they are.
void write_step_state(const StepBatch& batch, const StepShape& shape, const SlotLookup& slots, uint32_t readback_begin,
                      uint32_t n_q_heads, std::span<std::byte> to);

}  // namespace lorad::model
