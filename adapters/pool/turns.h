// A mutex that is given away in the order in which it was asked for, where a call that does much must not be passed by
// others for ever. For use with std::lock_guard.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace lorad::adapters {

class Turns {
  public:
    void lock() {
        std::unique_lock lock(mutex_);
        const uint64_t mine = n_asked_++;
        changed_.wait(lock, [&] { return n_done_ == mine; });
    }
    void unlock() {
        {
            const std::lock_guard lock(mutex_);
            ++n_done_;
        }
        changed_.notify_all();
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    uint64_t n_asked_ = 0, n_done_ = 0;
};

}  // namespace lorad::adapters
