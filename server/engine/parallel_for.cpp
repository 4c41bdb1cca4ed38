#include "server/engine/parallel_for.h"

#include "proto/base/mutex.h"
#include "proto/base/thread.h"

namespace lorad::server {

ParallelFor::ParallelFor(uint32_t n_workers) {
    CHECK(n_workers > 0);
    threads_.reserve(n_workers - 1);
    for (uint32_t worker = 1; worker < n_workers; ++worker) {
        std::thread thread;
        if (!start_thread(thread, [this, worker] { work(worker); }, kBigStackBytes)) break;  // fewer will do
        threads_.push_back(std::move(thread));
    }
}

ParallelFor::~ParallelFor() {
    {
        MutexLock lock(mutex_);
        stop_ = true;
    }
    begin_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void ParallelFor::take_jobs(const std::function<void(uint32_t, uint32_t)>& job, uint32_t n_jobs, uint32_t worker) {
    for (uint32_t index = next_.fetch_add(1); index < n_jobs; index = next_.fetch_add(1)) job(index, worker);
}

void ParallelFor::run(uint32_t n_jobs, const std::function<void(uint32_t, uint32_t)>& job) {
    if (n_jobs <= 1 || threads_.empty()) {
        for (uint32_t index = 0; index < n_jobs; ++index) job(index, 0);
        return;
    }
    {
        MutexLock lock(mutex_);
        job_ = &job;
        n_jobs_ = n_jobs;
        next_ = 0;
        n_busy_ = static_cast<uint32_t>(threads_.size());
        ++round_;
    }
    begin_.notify_all();
    take_jobs(job, n_jobs, 0);
    // Every thread passes through every round, so none of them can still look at `job` afterwards.
    MutexLock lock(mutex_);
    done_.wait(lock, [this]() REQUIRES(mutex_) { return n_busy_ == 0; });
}

void ParallelFor::work(uint32_t worker) {
    uint64_t seen = 0;
    MutexLock lock(mutex_);
    for (;;) {
        begin_.wait(lock, [&]() REQUIRES(mutex_) { return stop_ || round_ != seen; });
        if (stop_) return;
        seen = round_;
        const auto* job = job_;
        uint32_t n_jobs = n_jobs_;
        lock.unlock();
        take_jobs(*job, n_jobs, worker);
        lock.lock();
        if (--n_busy_ == 0) done_.notify_one();
    }
}

}  // namespace lorad::server
