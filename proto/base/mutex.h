// Locks that clang can check: `tests/thread_safety.sh` compiles annotated files with -Wthread-safety, which makes any
// use of a GUARDED_BY member without its mutex an error. Other compilers see plain std::mutex and
// std::condition_variable. https://clang.llvm.org/docs/ThreadSafetyAnalysis.html has the meaning of each word.
//
//   Mutex mutex_;
//   Condition changed_;
//   int n_ GUARDED_BY(mutex_) = 0;
//   void add() REQUIRES(mutex_);   // the caller holds it
//
//   MutexLock lock(mutex_);
//   changed_.wait(lock, [this]() REQUIRES(mutex_) { return n_ > 0; });
#pragma once

#include <condition_variable>
#include <mutex>
#include <utility>

#ifdef __clang__
#define LORAD_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define LORAD_THREAD_ATTRIBUTE(x)
#endif

#define CAPABILITY(name) LORAD_THREAD_ATTRIBUTE(capability(name))
#define SCOPED_CAPABILITY LORAD_THREAD_ATTRIBUTE(scoped_lockable)
#define GUARDED_BY(mutex) LORAD_THREAD_ATTRIBUTE(guarded_by(mutex))
#define ACQUIRE(...) LORAD_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define RELEASE(...) LORAD_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define REQUIRES(...) LORAD_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
// The caller does not hold it: the function takes it.
#define EXCLUDES(...) LORAD_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
// For a function that is safe without a lock; a comment beside it has the reason.
#define NO_THREAD_SAFETY_ANALYSIS LORAD_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace lorad {

class CAPABILITY("mutex") Mutex {
  public:
    void lock() ACQUIRE() { mutex_.lock(); }
    void unlock() RELEASE() { mutex_.unlock(); }

  private:
    friend class MutexLock;
    std::mutex mutex_;
};

// Holds a mutex to the end of its scope, except between unlock() and lock().
class SCOPED_CAPABILITY MutexLock {
  public:
    explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : lock_(mutex.mutex_) {}
    ~MutexLock() RELEASE() {}
    MutexLock(const MutexLock&) = delete;
    MutexLock& operator=(const MutexLock&) = delete;

    void lock() ACQUIRE() { lock_.lock(); }
    void unlock() RELEASE() { lock_.unlock(); }

  private:
    friend class Condition;
    std::unique_lock<std::mutex> lock_;
};

// A std::condition_variable, whose waits give the mutex away and have it again when they return.
class Condition {
  public:
    void notify_one() { condition_.notify_one(); }
    void notify_all() { condition_.notify_all(); }

    void wait(MutexLock& lock) { condition_.wait(lock.lock_); }
    template <typename Predicate>
    void wait(MutexLock& lock, Predicate done) {
        condition_.wait(lock.lock_, std::move(done));
    }
    template <typename Duration, typename... Predicate>
    auto wait_for(MutexLock& lock, const Duration& timeout, Predicate... done) {
        return condition_.wait_for(lock.lock_, timeout, std::move(done)...);
    }
    template <typename TimePoint, typename... Predicate>
    auto wait_until(MutexLock& lock, const TimePoint& end, Predicate... done) {
        return condition_.wait_until(lock.lock_, end, std::move(done)...);
    }

  private:
    std::condition_variable condition_;
};

}  // namespace lorad
