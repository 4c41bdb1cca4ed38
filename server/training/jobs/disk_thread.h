// What jobs write, on a thread of its own: a slow disk holds up the job whose files they are, and nobody's steps.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "proto/base/mutex.h"
#include "proto/base/result.h"

namespace lorad::server::training {

// Tasks run one after the other in the order in which they came. Any thread.
class DiskThread {
  public:
    // Tasks of one job that wait or run, beyond which the job has to wait before it makes more.
    static constexpr uint32_t kPendingMax = 4;

    // ended: called on the thread behind each task, with its job and what came of it (kClientClosed: it was dropped);
    // is_busy() and has_room() count it as done then.
    explicit DiskThread(std::function<void(const std::string& job, const Status& how)> ended);
    ~DiskThread() { stop(); }
    DiskThread(const DiskThread&) = delete;
    DiskThread& operator=(const DiskThread&) = delete;

    // Tasks that are put before are run then; if the system gives no thread, each runs where it is put.
    void start();
    // Works off what there is. A task that comes later runs where it is put.
    void stop();

    // Behind a task that failed the later ones of its job are dropped, as they count on it, until forgive().
    void put(const std::string& job, std::function<Status()> task);
    void forgive(const std::string& job);
    bool has_room(const std::string& job) const;
    bool is_busy(const std::string& job) const;

  private:
    struct Task {
        std::string job;
        std::function<Status()> work;
    };
    struct OfJob {
        uint32_t n_pending = 0;
        bool has_failed = false;
    };
    void run();
    // Without the lock while the task runs.
    void run_first() REQUIRES(mutex_);

    const std::function<void(const std::string& job, const Status& how)> ended_;
    mutable Mutex mutex_;
    Condition changed_;
    std::deque<Task> tasks_ GUARDED_BY(mutex_);
    std::map<std::string, OfJob> jobs_ GUARDED_BY(mutex_);  // that have tasks, or one that failed
    bool stopping_ GUARDED_BY(mutex_) = false;
    bool runs_where_put_ GUARDED_BY(mutex_) = false;  // there is no thread, or no longer
    std::thread thread_;
};

}  // namespace lorad::server::training
