// Hand-over of requests from HTTP workers (any number) to the engine thread (one). Bounded: a full
// queue is an answer (429), never a wait. The bounds count requests, and tokens of their prompts,
// until the engine first runs them, so those that it has drained but cannot admit yet still count.
// The answers to one HTTP request come as a group, all or none of it; a group that is over a bound by
// itself is taken when nothing else waits, since it would have to be refused for ever otherwise.
#pragma once

#include <chrono>
#include <span>
#include <vector>

#include "proto/base/mutex.h"
#include "proto/base/result.h"
#include "server/engine/request.h"

namespace lorad::server {

class RequestQueue {
  public:
    RequestQueue(uint32_t n_waiting_max, uint64_t n_tokens_max)
        : n_waiting_max_(n_waiting_max), n_tokens_max_(n_tokens_max) {}

    // HTTP workers. kOverloaded when full, kDraining after close(); the requests are untouched then.
    Status push(std::span<Request> group);
    Status push(Request& request) { return push(std::span(&request, 1)); }
    // The same answers for a request of which nothing is known yet.
    Status check_room() const;

    // Engine thread: takes all that came. The requests count as waiting until leave_waiting().
    std::vector<Request> drain();
    void leave_waiting(uint32_t n_requests, uint64_t n_tokens);
    // Sleeps until a request or wake() comes, or `timeout` passes.
    void wait(std::chrono::milliseconds timeout);
    // Sleeps until wake() comes or `timeout` passes; requests may come meanwhile.
    void rest(std::chrono::duration<double> timeout);

    // Any thread.
    void wake();
    void close(Error refusal);
    uint32_t n_waiting() const;
    uint64_t n_waiting_tokens() const;  // of the waiting prompts

  private:
    Status check(uint64_t n_requests, uint64_t n_tokens) const REQUIRES(mutex_);

    const uint32_t n_waiting_max_;
    const uint64_t n_tokens_max_;
    mutable Mutex mutex_;
    Condition changed_;
    std::vector<Request> requests_ GUARDED_BY(mutex_);
    uint32_t n_waiting_ GUARDED_BY(mutex_) = 0;
    uint64_t n_tokens_ GUARDED_BY(mutex_) = 0;  // of the waiting ones
    bool woken_ GUARDED_BY(mutex_) = false;
    std::optional<Error> refusal_ GUARDED_BY(mutex_);  // set once closed
};

}  // namespace lorad::server
