// The adapters of a batch as more k of its products (StackedGroup, gpu/kernels/step_state.h): which columns each gets.
// Pure: no device.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "gpu/kernels/step_state.h"
#include "model/step/batch_traits.h"
#include "model/step/step_batch.h"
#include "model/weights/lora_table.h"

namespace lorad::model {

class StackedColumns {
  public:
    // For a batch at level kPlain and a model with weights of this type. nullopt if an adapter or its columns do not
    // fit.
    static std::optional<StackedColumns> of(const StepBatch& batch, const SlotLookup& slots,
                                            gpu::ScalarType weight_type);

    const std::array<gpu::StackedGroup, gpu::kLoraGroups>& groups() const { return groups_; }
    // A group's windows, by tile of kStackedTileRows rows of the batch.
    std::span<const gpu::StackedWindow> windows(uint32_t group) const { return windows_[group]; }
    // An adapter's number, the index in StackedGroup::adapters.
    uint32_t number_of(uint32_t slot) const;
    // Steps of kStackedStep columns of a row tile, on the average.
    double mean_steps(uint32_t group) const;

  private:
    std::vector<uint32_t> slots_;  // by number
    std::array<gpu::StackedGroup, gpu::kLoraGroups> groups_{};
    std::array<std::vector<gpu::StackedWindow>, gpu::kLoraGroups> windows_;

    bool add(uint32_t slot, const SlotTraits& traits, gpu::ScalarType weight_type);
    void set_windows(const StepBatch& batch);
};

}  // namespace lorad::model
