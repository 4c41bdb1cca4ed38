// Remembers that a device is lost. A loss seen by any call on any queue counts for all of them, for ever. Internal to
// gpu/.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>

#include "proto/base/result.h"

namespace lorad::gpu {

// Thread-safe.
class DeviceHealth {
  public:
    bool lost() const { return lost_.load(std::memory_order_acquire); }

    // The first loss; ok before it.
    Status status() const {
        if (!lost()) return ok_status();
        std::lock_guard lock(mutex_);
        return *first_;
    }

    // Returns the first loss, which this may be.
    Error note_loss(Error error) {
        error.code = ErrorCode::kDeviceLost;
        std::lock_guard lock(mutex_);
        if (!first_) first_ = std::move(error);
        lost_.store(true, std::memory_order_release);
        return *first_;
    }

  private:
    std::atomic<bool> lost_ = false;
    mutable std::mutex mutex_;
    std::optional<Error> first_;  // guarded by mutex_
};

}  // namespace lorad::gpu
