#include "server/http/guard/workers.h"

#include <system_error>

#include "proto/base/log.h"
#include "proto/base/mutex.h"
#include "proto/base/thread.h"

namespace lorad::server {

Workers::Workers(uint32_t n_workers, size_t n_waiting_max, std::function<void(Connection&)> serve)
    : n_waiting_max_(n_waiting_max), serve_(std::move(serve)) {
    try {
        while (threads_.size() < n_workers) threads_.emplace_back([this] { run(); });
    } catch (const std::system_error& error) {
        log_warn("only {} of {} HTTP workers could be started: {}", threads_.size(), n_workers, error.what());
    }
}

bool Workers::enqueue(Connection& connection) {
    {
        MutexLock lock(mutex_);
        if (waiting_.size() >= n_waiting_max_ || threads_.empty()) return false;
        waiting_.push_back(&connection);
    }
    changed_.notify_one();
    return true;
}

void Workers::stop() {
    {
        MutexLock lock(mutex_);
        ended_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
}

void Workers::run() {
    name_thread("lorad-http");
    for (;;) {
        MutexLock lock(mutex_);
        changed_.wait(lock, [this]() REQUIRES(mutex_) { return ended_ || !waiting_.empty(); });
        if (waiting_.empty()) return;
        Connection& connection = *waiting_.front();
        waiting_.pop_front();
        lock.unlock();
        serve_(connection);
    }
}

}  // namespace lorad::server
