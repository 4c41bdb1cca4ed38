// A mutex that is given away in the order in which it was asked for, where a call that does much must not be passed by
// others for ever.
#pragma once

#include <cstdint>

#include "proto/base/mutex.h"

namespace lorad::adapters {

class CAPABILITY("mutex") FifoMutex {
  public:
    void lock() ACQUIRE() {
        MutexLock lock(mutex_);
        const uint64_t mine = n_asked_++;
        changed_.wait(lock, [&]() REQUIRES(mutex_) { return n_done_ == mine; });
    }
    void unlock() RELEASE() {
        {
            const MutexLock lock(mutex_);
            ++n_done_;
        }
        changed_.notify_all();
    }

  private:
    Mutex mutex_;
    Condition changed_;
    uint64_t n_asked_ GUARDED_BY(mutex_) = 0, n_done_ GUARDED_BY(mutex_) = 0;
};

// Holds the mutex to the end of its scope.
class SCOPED_CAPABILITY FifoLock {
  public:
    explicit FifoLock(FifoMutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
    ~FifoLock() RELEASE() { mutex_.unlock(); }
    FifoLock(const FifoLock&) = delete;
    FifoLock& operator=(const FifoLock&) = delete;

  private:
    FifoMutex& mutex_;
};

}  // namespace lorad::adapters
