// A few threads that share the work of one loop: the engine samples the tokens of many sequences
// with it, each from a hundred thousand logits. The jobs are pure functions; who runs which does
// not matter.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "proto/base/check.h"
#include "proto/base/mutex.h"

namespace lorad::server {

class ParallelFor {
  public:
    // The calling thread is worker 0; n_workers - 1 threads are started, with big stacks: jobs step through grammars of
    // clients.
    explicit ParallelFor(uint32_t n_workers);
    ~ParallelFor();
    ParallelFor(const ParallelFor&) = delete;
    ParallelFor& operator=(const ParallelFor&) = delete;

    uint32_t n_workers() const { return static_cast<uint32_t>(threads_.size()) + 1; }

    // Calls job(index, worker) for every index below n_jobs and returns when all are done. From one
    // thread.
    void run(uint32_t n_jobs, const std::function<void(uint32_t index, uint32_t worker)>& job);

  private:
    void work(uint32_t worker);
    void take_jobs(const std::function<void(uint32_t, uint32_t)>& job, uint32_t n_jobs, uint32_t worker);

    std::vector<std::thread> threads_;
    std::atomic<uint32_t> next_{0};
    Mutex mutex_;
    Condition begin_, done_;
    const std::function<void(uint32_t, uint32_t)>* job_ GUARDED_BY(mutex_) = nullptr;
    uint32_t n_jobs_ GUARDED_BY(mutex_) = 0;
    uint64_t round_ GUARDED_BY(mutex_) = 0;
    uint32_t n_busy_ GUARDED_BY(mutex_) = 0;
    bool stop_ GUARDED_BY(mutex_) = false;
};

}  // namespace lorad::server
