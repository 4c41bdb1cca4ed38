// A word in host memory that a dispatch sets to 1 when its grid barrier has timed out. Engine thread only.
#pragma once

#include <cstdint>

#include "gpu/device.h"
#include "proto/base/result.h"

namespace lorad::model {

class GivenUp {
  public:
    static Result<GivenUp> create(gpu::Device& device, const char* name);

    gpu::DeviceAddress address() const { return word_.address(); }
    // It stays so.
    bool is_set() const;

  private:
    gpu::Buffer word_;  // u32
};

}  // namespace lorad::model
