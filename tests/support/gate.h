// A point that threads wait at while a test keeps it closed: what a test claims of slow work then depends on no time.
#pragma once

#include <condition_variable>
#include <mutex>

namespace lorad::testing {

class Gate {
  public:
    explicit Gate(bool is_closed = false) : is_closed_(is_closed) {}

    // Waits while it is closed.
    void pass() {
        std::unique_lock lock(mutex_);
        ++n_waiting_;
        changed_.notify_all();
        changed_.wait(lock, [this] { return !is_closed_; });
        --n_waiting_;
    }
    // Until somebody waits at it.
    void wait_for_one() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return n_waiting_ > 0; });
    }
    void set_closed(bool closed) {
        const std::lock_guard lock(mutex_);
        is_closed_ = closed;
        changed_.notify_all();
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool is_closed_;
    int n_waiting_ = 0;
};

}  // namespace lorad::testing
