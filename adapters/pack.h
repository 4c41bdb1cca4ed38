// A checked adapter in the layout that the LoRA kernels read, at its true ranks.
//
//   block: | A of module | B of module | A of the next | ...        every matrix begins at a multiple of 256 bytes
//   A [rank][k rounded up to 64]     B [n][rank rounded up to 8]    padding zero, the file's type kept
//
// Fused names (qkv_proj) become modules that share one A and address row ranges of one B. Where A and B of a module have
// different types both are widened to f32, which is exact.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "adapters/check.h"
#include "adapters/weight_store.h"
#include "model/lora_table.h"
#include "proto/base/result.h"

namespace lorad::adapters {

struct PackedAdapter {
    std::vector<std::unique_ptr<WeightBlock>> blocks;  // one, unless it is larger than the store's largest
    model::AdapterView view;
    uint64_t device_bytes = 0;
};

// Device bytes that pack_adapter will ask for.
uint64_t packed_bytes(const CheckedAdapter& adapter);

// Allocates, uploads, and returns when everything has arrived. On an error nothing is left allocated.
Result<PackedAdapter> pack_adapter(const CheckedAdapter& adapter, WeightStore& store);

}  // namespace lorad::adapters
