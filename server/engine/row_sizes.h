// The numbers of rows that a device's steps are made for. A step of any other number takes the time of the next larger
// one, but for its attention: steps with prompts are made full, so that as few rows as can be are computed for nothing.
// Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace lorad::server {

class RowSizes {
  public:
    // Ascending, and the last one is the most that a step may have: n_rows_max, which need not be one of `sizes`.
    RowSizes(std::vector<uint32_t> sizes, uint32_t n_rows_max) : sizes_(std::move(sizes)) {
        std::erase_if(sizes_, [&](uint32_t size) { return size >= n_rows_max; });
        sizes_.push_back(n_rows_max);
    }

    size_t n() const { return sizes_.size(); }
    uint32_t operator[](size_t index) const { return sizes_[index]; }
    uint32_t largest() const { return sizes_.back(); }

    // The smallest of at least n_rows; n() where there is none.
    size_t index_of(uint32_t n_rows) const {
        return static_cast<size_t>(std::ranges::lower_bound(sizes_, n_rows) - sizes_.begin());
    }
    // n_rows itself where there is none.
    uint32_t rounded_up(uint32_t n_rows) const {
        const size_t i = index_of(n_rows);
        return i == n() ? n_rows : sizes_[i];
    }
    uint32_t rounded_down(uint32_t n_rows) const {
        const auto above = std::ranges::upper_bound(sizes_, n_rows);
        return above == sizes_.begin() ? n_rows : *std::prev(above);
    }

  private:
    std::vector<uint32_t> sizes_;
};

}  // namespace lorad::server
