// Threads that serve connections with whole requests, and the bounded queue before them.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "proto/base/mutex.h"

namespace lorad::server {

struct Connection;

class Workers {
  public:
    // If the system gives fewer threads than asked for, it goes on with those, with a warning in the log.
    Workers(uint32_t n_workers, size_t n_waiting_max, std::function<void(Connection&)> serve);
    ~Workers() { stop(); }

    // False: as many wait as may.
    bool enqueue(Connection& connection);
    // Serves all that was enqueued, then joins.
    void stop();
    size_t n_workers() const { return threads_.size(); }

  private:
    void run();

    const size_t n_waiting_max_;
    const std::function<void(Connection&)> serve_;
    Mutex mutex_;
    Condition changed_;
    std::deque<Connection*> waiting_ GUARDED_BY(mutex_);
    bool ended_ GUARDED_BY(mutex_) = false;
    std::vector<std::thread> threads_;
};

}  // namespace lorad::server
