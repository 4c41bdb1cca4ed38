#include "server/training/jobs/disk_thread.h"

#include <utility>

#include "proto/base/log.h"
#include "proto/base/thread.h"

namespace lorad::server::training {

DiskThread::DiskThread(std::function<void(const std::string& job, const Status& how)> ended)
    : ended_(std::move(ended)) {}

void DiskThread::start() {
    const bool started = start_thread(thread_, [this] { run(); });
    if (!started) log_warn("the system gives no thread for the files of training: steps wait for the disk");
    MutexLock lock(mutex_);
    runs_where_put_ = !started;
    while (runs_where_put_ && !tasks_.empty()) run_first();
}

void DiskThread::stop() {
    {
        MutexLock lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
    MutexLock lock(mutex_);
    runs_where_put_ = true;
    while (!tasks_.empty()) run_first();
}

void DiskThread::run() {
    name_thread("lorad-jobfiles");
    MutexLock lock(mutex_);
    while (true) {
        changed_.wait(lock, [this]() REQUIRES(mutex_) { return stopping_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        run_first();
    }
}

void DiskThread::run_first() {
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    const bool is_dropped = jobs_[task.job].has_failed;
    mutex_.unlock();
    const Status how =
        is_dropped ? Status(make_error(ErrorCode::kClientClosed, "what it counts on was not written")) : task.work();
    task.work = {};  // what it holds is gone before its job counts as done
    mutex_.lock();
    OfJob& of_job = jobs_[task.job];
    of_job.has_failed = !how.ok();
    --of_job.n_pending;
    mutex_.unlock();
    ended_(task.job, how);
    mutex_.lock();
    const auto found = jobs_.find(task.job);
    if (found != jobs_.end() && found->second.n_pending == 0 && !found->second.has_failed) jobs_.erase(found);
}

void DiskThread::put(const std::string& job, std::function<Status()> task) {
    MutexLock lock(mutex_);
    ++jobs_[job].n_pending;
    tasks_.push_back({job, std::move(task)});
    while (runs_where_put_ && !tasks_.empty()) run_first();
    changed_.notify_all();
}

void DiskThread::forgive(const std::string& job) {
    MutexLock lock(mutex_);
    const auto found = jobs_.find(job);
    if (found == jobs_.end()) return;
    found->second.has_failed = false;
    if (found->second.n_pending == 0) jobs_.erase(found);
}

bool DiskThread::has_room(const std::string& job) const {
    MutexLock lock(mutex_);
    const auto found = jobs_.find(job);
    return found == jobs_.end() || found->second.n_pending < kPendingMax;
}

bool DiskThread::is_busy(const std::string& job) const {
    MutexLock lock(mutex_);
    const auto found = jobs_.find(job);
    return found != jobs_.end() && found->second.n_pending > 0;
}

}  // namespace lorad::server::training
