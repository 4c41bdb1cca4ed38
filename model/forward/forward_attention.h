// Records attention, from the product of q, k and v to the input of o. Internal to forward.cpp.
#pragma once

#include <cstdint>
#include <optional>

#include "gpu/command.h"
#include "gpu/kernels/kernels.h"
#include "model/forward/forward.h"
#include "model/step/step_shape.h"
#include "model/step/step_state.h"

namespace lorad::model {

// Reads the product's sums, which lie in scratch.y, with split_stride elements from one split to the next; writes
// scratch.attention.
class AttentionPass {
  public:
    AttentionPass(gpu::Recorder& recorder, const ForwardContext& context, const StepShape& shape);

    // Keys and values go to the cache, and what the rows attend to comes back. Ends with a barrier. y_order: in
    // fragments in this order, at fragments_of(scratch.attention), and in rows as well where there are more kernels
    // than one.
    void attend(uint32_t layer, const gpu::ConsumerShape& product, uint32_t split_stride,
                std::optional<uint32_t> y_order = std::nullopt) const;
    // Keys and values alone: what nobody reads more of. No barrier.
    void keep(uint32_t layer, gpu::ConsumerShape product, uint32_t split_stride) const;

  private:
    void attend_from_sums(uint32_t layer, const gpu::ConsumerShape& product, uint32_t split_stride,
                          std::optional<uint32_t> y_order) const;
    void norm_wide(uint32_t layer, const AttentionFacts& facts, const gpu::ConsumerShape& product,
                   uint32_t split_stride) const;
    gpu::AttentionShape rows_of(const AttentionFacts& facts) const;
    bool has_f16_keys(uint32_t layer) const;
    gpu::DeviceAddress kv_of(uint32_t layer, const AttentionFacts& facts) const;
    gpu::DeviceAddress step_of(uint32_t layer) const;
    void attend_from_queries(uint32_t layer, std::optional<uint32_t> y_order) const;

    gpu::Recorder& recorder_;
    gpu::KernelSet& kernels_;
    const ForwardContext& context_;
    const ModelConfig& config_;
    const Scratch& scratch_;
    const StepShape shape_;
    const StepLayout layout_;
    const gpu::DeviceAddress step_;
};

}  // namespace lorad::model
