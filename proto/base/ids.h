// Small shared vocabulary types.
#pragma once

#include <compare>
#include <cstdint>

namespace lorad {

using TokenId = int32_t;     // index into the model's vocabulary; never negative in a prompt
using BlockId = uint32_t;    // KV block index in the pool
using RequestId = uint64_t;  // unique for the life of the process

// A row without adapter. Kernels skip it; it is not another code path.
inline constexpr uint32_t kNoAdapterSlot = 0xffffffffu;

inline constexpr uint32_t kLoraUsesMax = 8;  // adapters that one row can run with

// One adapter of a row: its slot of the LoRA table, and what its delta is multiplied with on top of alpha / rank.
struct LoraUse {
    uint32_t slot = kNoAdapterSlot;
    float scale = 1.0f;

    auto operator<=>(const LoraUse&) const = default;
};

}  // namespace lorad
