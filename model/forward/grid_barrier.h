// Owns the state of a dispatch's grid barriers: their memory (gpu/kernels/persistent/grid_barrier.h), and a word that
// says whether one has timed out. Engine thread only.
#pragma once

#include <cstdint>
#include <memory>

#include "gpu/device.h"
#include "model/forward/given_up.h"
#include "proto/base/result.h"

namespace lorad::model {

class GridBarrier {
  public:
    // sync_bytes: at least gpu::GridBarrierSync, behind which a program may have more.
    static Result<std::unique_ptr<GridBarrier>> create(gpu::Device& device, uint64_t sync_bytes, const char* name);

    gpu::DeviceAddress sync() const { return sync_.address(); }
    // Set when a grid barrier of some step has timed out.
    const GivenUp& given_up() const { return given_up_; }

  private:
    gpu::Buffer sync_;
    GivenUp given_up_;
};

}  // namespace lorad::model
