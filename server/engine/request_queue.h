// Hand-over of requests from HTTP workers (any number) to the engine thread (one). Bounded: a full
// queue is an answer (429), never a wait. The bound counts requests until the engine first runs
// them, so those that it has drained but cannot admit yet still count.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "proto/base/result.h"
#include "server/engine/request.h"

namespace lorad::server {

class RequestQueue {
  public:
    explicit RequestQueue(uint32_t n_waiting_max) : n_waiting_max_(n_waiting_max) {}

    // HTTP workers. kOverloaded when full, kDraining after close(); the request is untouched then.
    Status push(Request& request);

    // Engine thread: takes all that came. The requests count as waiting until leave_waiting().
    std::vector<Request> drain();
    void leave_waiting(uint32_t n_requests);
    // Sleeps until a request or wake() comes, or `timeout` passes.
    void wait(std::chrono::milliseconds timeout);

    // Any thread.
    void wake();
    void close(Error refusal);
    uint32_t n_waiting() const;

  private:
    const uint32_t n_waiting_max_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<Request> requests_;  // guarded by mutex_
    uint32_t n_waiting_ = 0;         // guarded by mutex_
    bool woken_ = false;             // guarded by mutex_
    std::optional<Error> refusal_;   // guarded by mutex_; set once closed
};

}  // namespace lorad::server
