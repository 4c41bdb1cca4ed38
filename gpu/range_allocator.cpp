#include "gpu/range_allocator.h"

#include "proto/base/check.h"
#include "proto/base/rounding.h"

namespace lorad::gpu {

RangeAllocator::RangeAllocator(uint64_t size_bytes) {
    const uint64_t usable = size_bytes / kAlignment * kAlignment;
    CHECK(usable > 0);
    add_hole(0, usable);
}

std::optional<uint64_t> RangeAllocator::allocate(uint64_t size_bytes) {
    CHECK(size_bytes > 0);
    const uint64_t need = round_up(size_bytes, kAlignment);
    const auto fit = holes_by_size_.lower_bound({need, 0});
    if (fit == holes_by_size_.end()) return std::nullopt;
    const auto [hole_size, offset] = *fit;
    remove_hole(holes_.find(offset));
    if (hole_size > need) add_hole(offset + need, hole_size - need);
    used_.emplace(offset, need);
    used_bytes_ += need;
    return offset;
}

void RangeAllocator::release(uint64_t offset) {
    const auto range = used_.find(offset);
    CHECK(range != used_.end());
    uint64_t begin = offset;
    uint64_t size = range->second;
    used_bytes_ -= size;
    used_.erase(range);

    const auto after = holes_.lower_bound(begin);
    if (after != holes_.end() && after->first == begin + size) {
        size += after->second;
        remove_hole(after);
    }
    auto before = holes_.lower_bound(begin);
    if (before != holes_.begin()) {
        --before;
        if (before->first + before->second == begin) {
            begin = before->first;
            size += before->second;
            remove_hole(before);
        }
    }
    add_hole(begin, size);
}

uint64_t RangeAllocator::largest_hole() const { return holes_by_size_.empty() ? 0 : holes_by_size_.rbegin()->first; }

void RangeAllocator::add_hole(uint64_t offset, uint64_t size) {
    holes_.emplace(offset, size);
    holes_by_size_.emplace(size, offset);
}

void RangeAllocator::remove_hole(std::map<uint64_t, uint64_t>::iterator hole) {
    holes_by_size_.erase({hole->second, hole->first});
    holes_.erase(hole);
}

}  // namespace lorad::gpu
