// Hands out ranges of one slab: best fit, neighbours merged on release. Plain bookkeeping, no Vulkan, not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace lorad::gpu {

class RangeAllocator {
  public:
    static constexpr uint64_t kAlignment = 256;  // bytes; sizes are rounded up to it, so every offset is a multiple

    explicit RangeAllocator(uint64_t size_bytes);

    std::optional<uint64_t> allocate(uint64_t size_bytes);  // the offset; nothing if no hole is large enough
    void release(uint64_t offset);                          // an offset that allocate gave

    bool empty() const { return used_.empty(); }
    uint64_t used_bytes() const { return used_bytes_; }
    uint64_t largest_hole() const;

  private:
    void add_hole(uint64_t offset, uint64_t size);
    void remove_hole(std::map<uint64_t, uint64_t>::iterator hole);

    std::map<uint64_t, uint64_t> holes_;                     // offset -> size
    std::set<std::pair<uint64_t, uint64_t>> holes_by_size_;  // (size, offset)
    std::map<uint64_t, uint64_t> used_;                      // offset -> size
    uint64_t used_bytes_ = 0;
};

}  // namespace lorad::gpu
