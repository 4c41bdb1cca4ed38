#include "model/weights/stacked_columns.h"

#include <algorithm>
#include <limits>

#include "proto/base/check.h"
#include "proto/base/rounding.h"

namespace lorad::model {
namespace {

constexpr uint32_t kBlockRanks = 16;
constexpr uint32_t kStepBlocks = gpu::kStackedStep / kBlockRanks;

constexpr uint32_t room(uint32_t group) {
    return gpu::kLoraGroupModules[group] * gpu::kStackedModuleColumns / kBlockRanks;
}
static_assert(room(0) == gpu::kStackedBlocksMax);

}  // namespace

std::optional<StackedColumns> StackedColumns::of(const StepBatch& batch, const SlotLookup& slots,
                                               gpu::ScalarType weight_type) {
    StackedColumns columns;
    uint32_t last = kNoAdapterSlot;
    for (const BatchRow& row : batch.rows()) {
        if (row.adapter_slot == last || row.adapter_slot == kNoAdapterSlot) continue;
        last = row.adapter_slot;
        if (std::ranges::find(columns.slots_, last) == columns.slots_.end() &&
            !columns.add(last, slots(last), weight_type))
            return std::nullopt;
    }
    for (gpu::StackedGroup& group : columns.groups_) {
        while (group.n_blocks % kStepBlocks != 0) group.blocks[group.n_blocks++] = {gpu::kNoSlot, 0};
    }
    columns.set_windows(batch);
    return columns;
}

// False where there is no room.
bool StackedColumns::add(uint32_t slot, const SlotTraits& traits, gpu::ScalarType weight_type) {
    if (slots_.size() == gpu::kStackedAdaptersMax) return false;
    const uint32_t n_parts = traits.types == 1u << static_cast<uint32_t>(weight_type) ? 2 : 3;
    for (uint32_t g = 0; g < gpu::kLoraGroups; ++g) {
        gpu::StackedGroup& group = groups_[g];
        const uint32_t n_rank_blocks = ceil_div(traits.ranks[g], kBlockRanks);
        if (group.n_blocks + gpu::kLoraGroupModules[g] * n_rank_blocks * n_parts > room(g)) return false;
        group.adapters[slots_.size()] = {group.n_blocks, n_rank_blocks, n_parts, 0};
        for (uint32_t module = 0; module < gpu::kLoraGroupModules[g]; ++module) {
            for (uint32_t rank_block = 0; rank_block < n_rank_blocks; ++rank_block) {
                for (uint32_t part = 0; part < n_parts; ++part)
                    group.blocks[group.n_blocks++] = {slot, rank_block * kBlockRanks | module << 16 | part << 24};
            }
        }
    }
    slots_.push_back(slot);
    return true;
}

void StackedColumns::set_windows(const StepBatch& batch) {
    const uint32_t n_tiles = ceil_div(batch.n_rows(), gpu::kStackedTileRows);
    for (uint32_t tile = 0; tile < n_tiles; ++tile) {
        // Adapters have their columns in the order of their numbers.
        uint32_t first = std::numeric_limits<uint32_t>::max(), last = 0;
        const uint32_t begin = tile * gpu::kStackedTileRows,
                       end = std::min(begin + gpu::kStackedTileRows, batch.n_rows());
        for (uint32_t row = begin; row < end; ++row) {
            const uint32_t slot = batch.rows()[row].adapter_slot;
            if (slot == kNoAdapterSlot || (row > begin && slot == batch.rows()[row - 1].adapter_slot)) continue;
            first = std::min(first, number_of(slot));
            last = std::max(last, number_of(slot));
        }
        for (uint32_t g = 0; g < gpu::kLoraGroups; ++g) {
            const gpu::StackedGroup& group = groups_[g];
            if (first > last) {
                windows_[g].push_back({0, 0});
                continue;
            }
            const gpu::StackedAdapter& behind = group.adapters[last];
            const uint32_t first_step = group.adapters[first].first_block / kStepBlocks;
            const uint32_t end_block =
                behind.first_block + gpu::kLoraGroupModules[g] * behind.rank_blocks * behind.parts;
            windows_[g].push_back({first_step, ceil_div(end_block, kStepBlocks) - first_step});
        }
    }
}

uint32_t StackedColumns::number_of(uint32_t slot) const {
    const auto found = std::ranges::find(slots_, slot);
    CHECK(found != slots_.end());
    return static_cast<uint32_t>(found - slots_.begin());
}

double StackedColumns::mean_steps(uint32_t group) const {
    uint32_t sum = 0;
    for (const gpu::StackedWindow& window : windows_[group]) sum += window.n;
    return windows_[group].empty() ? 0 : static_cast<double>(sum) / static_cast<double>(windows_[group].size());
}

}  // namespace lorad::model
