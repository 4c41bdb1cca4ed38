// Owns what the grid barriers of a dispatch need beside its data: their memory (gpu/kernels/persistent/meeting.h), and
// a word that says whether workgroups waited in vain. Engine thread only.
#pragma once

#include <cstdint>
#include <memory>

#include "gpu/device.h"
#include "model/forward/given_up.h"
#include "proto/base/result.h"

namespace lorad::model {

class Meeting {
  public:
    // sync_bytes: at least gpu::MeetingSync, behind which a program may have more.
    static Result<std::unique_ptr<Meeting>> create(gpu::Device& device, uint64_t sync_bytes, const char* name);

    gpu::DeviceAddress sync() const { return sync_.address(); }
    // Set when some step's workgroups waited in vain.
    const GivenUp& given_up() const { return given_up_; }

  private:
    gpu::Buffer sync_;
    GivenUp given_up_;
};

}  // namespace lorad::model
