// A made-up adapter on the device, for tests below the adapters layer.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/buffer.h"
#include "model/config/config.h"
#include "model/weights/lora_table.h"
#include "tests/reference/numbers.h"

namespace lorad::testing {

// Random matrices of the given rank and of these types in turns for every module whose bit is set in `modules` (bit 0:
// q_proj), in every layer, put into `slot`; with gains, also random gains around 1 and biases. The buffers must outlive
// the slot's use.
std::vector<gpu::Buffer> put_synthetic_lora(gpu::Device& device, model::LoraTable& table,
                                            const model::ModelConfig& config, uint32_t slot, uint32_t rank,
                                            uint32_t modules, float scale, uint32_t seed, bool with_gains = false,
                                            const std::vector<reference::Type>& types = {reference::Type::kF32});

}  // namespace lorad::testing
