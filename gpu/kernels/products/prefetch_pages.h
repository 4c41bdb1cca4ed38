// A product's workgroups end by loading one line of each page that the next product reads. Its addresses are then
// translated when it begins, and it need not wait for that ("Addresses of what comes next" in docs/PERFORMANCE.md). No
// shader includes this.
#pragma once

#include <cstdint>

#include "proto/base/rounding.h"

namespace lorad::gpu {

// that NVIDIA's GPUs translate at once, in allocations of this size and more
constexpr uint32_t kPrefetchPageBytes = 2 << 20;

struct PrefetchPages {
    uint64_t begin = 0;  // address of the first byte; of each other page the first byte is loaded
    uint32_t n = 0;      // pages, the first and the last one perhaps in part. 0: no prefetch
    uint32_t pad = 0;
};
static_assert(sizeof(PrefetchPages) == 16);

constexpr PrefetchPages pages_to_prefetch(uint64_t address, uint64_t n_bytes) {
    return {
        address,
        static_cast<uint32_t>(ceil_div(n_bytes == 0 ? 0 : address % kPrefetchPageBytes + n_bytes, kPrefetchPageBytes)),
        0};
}

}  // namespace lorad::gpu
