// A point that threads wait at until a test opens it: what a test claims of slow work then depends on no time.
#pragma once

#include <condition_variable>
#include <mutex>

namespace lorad::testing {

class Gate {
  public:
    void wait() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return is_open_; });
    }
    void open() {
        const std::lock_guard lock(mutex_);
        is_open_ = true;
        changed_.notify_all();
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool is_open_ = false;
};

}  // namespace lorad::testing
