#include "server/engine/request_queue.h"

#include "proto/base/format.h"

namespace lorad::server {

Status RequestQueue::check(uint64_t n_tokens) const {
    if (refusal_) return *refusal_;
    if (n_waiting_ >= n_waiting_max_) {
        return make_error(ErrorCode::kOverloaded,
                          format("the server is busy: {} requests are waiting, at most {} may",
                                 n_waiting_, n_waiting_max_));
    }
    if (n_waiting_ > 0 && n_tokens_ + n_tokens > n_tokens_max_) {
        return make_error(
            ErrorCode::kOverloaded,
            format("the server is busy: prompts of {} tokens are waiting, at most {} may", n_tokens_,
                   n_tokens_max_));
    }
    return ok_status();
}

Status RequestQueue::check_room() const {
    std::lock_guard lock(mutex_);
    return check(1);
}

Status RequestQueue::push(Request& request) {
    {
        std::lock_guard lock(mutex_);
        TRY(check(request.prompt.size()));
        ++n_waiting_;
        n_tokens_ += request.prompt.size();
        requests_.push_back(std::move(request));
    }
    changed_.notify_one();
    return ok_status();
}

std::vector<Request> RequestQueue::drain() {
    std::lock_guard lock(mutex_);
    woken_ = false;
    return std::exchange(requests_, {});
}

void RequestQueue::leave_waiting(uint32_t n_requests, uint64_t n_tokens) {
    std::lock_guard lock(mutex_);
    CHECK(n_requests <= n_waiting_ && n_tokens <= n_tokens_);
    n_waiting_ -= n_requests;
    n_tokens_ -= n_tokens;
}

void RequestQueue::wait(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [this] { return !requests_.empty() || woken_; });
}

void RequestQueue::wake() {
    {
        std::lock_guard lock(mutex_);
        woken_ = true;
    }
    changed_.notify_one();
}

void RequestQueue::close(Error refusal) {
    {
        std::lock_guard lock(mutex_);
        if (!refusal_) refusal_ = std::move(refusal);
        woken_ = true;
    }
    changed_.notify_one();
}

uint64_t RequestQueue::n_waiting_tokens() const {
    std::lock_guard lock(mutex_);
    return n_tokens_;
}

uint32_t RequestQueue::n_waiting() const {
    std::lock_guard lock(mutex_);
    return n_waiting_;
}

}  // namespace lorad::server
