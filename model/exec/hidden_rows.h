// Hidden states of a step's outputs, brought to the host on request: the final norm of the rows whose next token is
// chosen, which is the input of the output layer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "gpu/buffer.h"
#include "gpu/command.h"
#include "gpu/device.h"
#include "gpu/kernels/kernels.h"
#include "proto/base/result.h"

namespace lorad::model {

// One per step that may be in flight. The executor's thread.
class HiddenRows {
  public:
    // rows: [outputs][stride] of `type`, of which the first `size` elements count. It outlives this.
    static Result<HiddenRows> create(gpu::Device& device, const gpu::Buffer& rows, gpu::ScalarType type, uint32_t size,
                                     uint32_t stride);
    // Copies all rows to the host; to be submitted behind the step that writes them.
    Result<const gpu::CommandBuffer*> copy();
    // After that: [n_outputs][size]; only the requested outputs hold anything. Valid until the next call.
    std::span<const float> read(std::span<const uint32_t> outputs, uint32_t n_outputs);

  private:
    gpu::Device* device_ = nullptr;
    const gpu::Buffer* rows_ = nullptr;
    gpu::ScalarType type_ = gpu::ScalarType::kF32;
    uint32_t size_ = 0, stride_ = 0;
    gpu::Buffer host_;
    std::optional<gpu::CommandBuffer> copy_;
    std::vector<float> widened_;
};

}  // namespace lorad::model
