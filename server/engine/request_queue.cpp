#include "server/engine/request_queue.h"

#include <iterator>

#include "proto/base/format.h"
#include "proto/base/mutex.h"

namespace lorad::server {

Status RequestQueue::check(uint64_t n_requests, uint64_t n_tokens) const {
    if (refusal_) return *refusal_;
    if (n_waiting_ >= n_waiting_max_ || (n_waiting_ > 0 && n_waiting_ + n_requests > n_waiting_max_)) {
        std::string more = n_requests > 1 ? format(" and {} more do not fit", n_requests) : "";
        return make_error(
            ErrorCode::kOverloaded,
            format("the server is busy: {} requests are waiting{}, at most {} may", n_waiting_, more, n_waiting_max_));
    }
    if (n_waiting_ > 0 && n_tokens_ + n_tokens > n_tokens_max_) {
        return make_error(
            ErrorCode::kOverloaded,
            format("the server is busy: prompts of {} tokens are waiting, at most {} may", n_tokens_, n_tokens_max_));
    }
    return ok_status();
}

Status RequestQueue::check_room() const {
    MutexLock lock(mutex_);
    return check(1, 1);
}

Status RequestQueue::push(std::span<Request> group) {
    uint64_t n_tokens = 0;
    for (const Request& request : group) n_tokens += request.prompt.size();
    {
        MutexLock lock(mutex_);
        TRY(check(group.size(), n_tokens));
        n_waiting_ += static_cast<uint32_t>(group.size());
        n_tokens_ += n_tokens;
        requests_.insert(requests_.end(), std::make_move_iterator(group.begin()), std::make_move_iterator(group.end()));
    }
    changed_.notify_one();
    return ok_status();
}

std::vector<Request> RequestQueue::drain() {
    MutexLock lock(mutex_);
    woken_ = false;
    return std::exchange(requests_, {});
}

void RequestQueue::leave_waiting(uint32_t n_requests, uint64_t n_tokens) {
    MutexLock lock(mutex_);
    CHECK(n_requests <= n_waiting_ && n_tokens <= n_tokens_);
    n_waiting_ -= n_requests;
    n_tokens_ -= n_tokens;
}

void RequestQueue::wait(std::chrono::milliseconds timeout) {
    MutexLock lock(mutex_);
    changed_.wait_for(lock, timeout, [this]() REQUIRES(mutex_) { return !requests_.empty() || woken_; });
}

void RequestQueue::rest(std::chrono::duration<double> timeout) {
    MutexLock lock(mutex_);
    changed_.wait_for(lock, timeout, [this]() REQUIRES(mutex_) { return woken_; });
}

void RequestQueue::wake() {
    {
        MutexLock lock(mutex_);
        woken_ = true;
    }
    changed_.notify_one();
}

void RequestQueue::close(Error refusal) {
    {
        MutexLock lock(mutex_);
        if (!refusal_) refusal_ = std::move(refusal);
        woken_ = true;
    }
    changed_.notify_one();
}

uint64_t RequestQueue::n_waiting_tokens() const {
    MutexLock lock(mutex_);
    return n_tokens_;
}

uint32_t RequestQueue::n_waiting() const {
    MutexLock lock(mutex_);
    return n_waiting_;
}

}  // namespace lorad::server
