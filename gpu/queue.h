// Submission and completion by timeline value. A lost device stays lost: every later call returns the first loss.
// Objects of a lost device are not destroyed with their owners: drivers fault there. Thread-safe; a recording is
// submitted by one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>

#include "gpu/command.h"
#include "proto/base/result.h"

namespace lorad::gpu {

struct QueueImpl;

class Queue {
  public:
    explicit Queue(QueueImpl* impl) : impl_(impl) {}

    // Submits recordings in order; they start after all earlier submissions of this queue. Returns the timeline
    // value that is reached when all of them have finished and their writes are visible to the host. kDeviceLost is
    // final;
    // kOutOfMemory: nothing was submitted, and later submissions may be.
    Result<uint64_t> submit(std::span<const CommandBuffer* const> recordings);
    // The same as submit, after the uploader's timeline has reached upload_value (0: no wait).
    Result<uint64_t> submit_after_upload(std::span<const CommandBuffer* const> recordings, uint64_t upload_value);

    // kDeviceLost on loss or after the deadline (a hung device); without one that is a minute, or ten for a software
    // device, which compiles a kernel at its first dispatch.
    Status wait(uint64_t value);
    Status wait(uint64_t value, std::chrono::milliseconds deadline);
    Result<uint64_t> completed() const;  // highest value reached
    // The device's loss, whoever found it: the uploader's failures are in it as well. Cheap.
    Status health() const;

  private:
    QueueImpl* impl_;
};

}  // namespace lorad::gpu
