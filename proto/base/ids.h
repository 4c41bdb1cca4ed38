// Small shared vocabulary types.
#pragma once

#include <cstdint>

namespace lorad {

using TokenId = int32_t;    // index into the model's vocabulary; never negative in a prompt
using BlockId = uint32_t;   // KV block index in the pool
using RequestId = uint64_t; // unique for the life of the process

// A row without adapter. Kernels skip it; it is not another code path.
inline constexpr uint32_t kNoAdapterSlot = 0xffffffffu;

}  // namespace lorad
