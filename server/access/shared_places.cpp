#include "server/access/shared_places.h"

#include <algorithm>

#include "proto/base/mutex.h"

namespace lorad::server::access {
namespace {

// Between two looks at whether somebody still waits.
constexpr std::chrono::milliseconds kLook{50};

using Counts = std::map<std::string, uint64_t, std::less<>>;

uint64_t held_by(const Counts& counts, const std::string& name) {
    auto found = counts.find(name);
    return found == counts.end() ? 0 : found->second;
}

void count(Counts& counts, const std::string& name, uint64_t n) {
    if (!name.empty()) counts[name] += n;
}

void uncount(Counts& counts, const std::string& name, uint64_t n) {
    auto found = counts.find(name);
    if (found != counts.end() && (found->second -= n) == 0) counts.erase(found);
}

}  // namespace

bool SharedPlaces::fits(const Holder& holder, uint64_t n) const {
    const uint64_t n_free = n_max_ - std::min(n_taken_, n_max_);
    if (n > n_free) return false;
    const auto has_share = [&](const Counts& counts, const std::string& name, uint64_t share) {
        const uint64_t n_held = name.empty() ? 0 : held_by(counts, name);
        return n_held == 0 || n_held + n <= share * (n_free - n);
    };
    return has_share(of_tenant_, holder.tenant, share_) && has_share(of_address_, holder.address, kOfAddress * share_);
}

SharedPlaces::Place SharedPlaces::place(const Holder& holder, uint64_t n) {
    Place out;
    out.holder_ = holder;
    out.n_ = n;
    count(of_tenant_, holder.tenant, n);
    count(of_address_, holder.address, n);
    n_taken_ += n;
    out.pool_ = this;
    return out;
}

SharedPlaces::Place SharedPlaces::take(const Holder& holder, uint64_t n) {
    MutexLock lock(mutex_);
    return fits(holder, n) ? place(holder, n) : Place();
}

SharedPlaces::Place SharedPlaces::wait(const Holder& holder, uint64_t n, std::chrono::milliseconds at_most,
                                       const std::function<bool()>& gives_up) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point end = Clock::now() + at_most;
    MutexLock lock(mutex_);
    while (!fits(holder, n)) {
        const Clock::time_point now = Clock::now();
        if (now >= end) return {};
        given_back_.wait_until(lock, std::min(end, now + kLook));
        if (!gives_up) continue;
        lock.unlock();
        if (gives_up()) return {};
        lock.lock();
    }
    return place(holder, n);
}

void SharedPlaces::give_back(const Holder& holder, uint64_t n) {
    {
        MutexLock lock(mutex_);
        uncount(of_tenant_, holder.tenant, n);
        uncount(of_address_, holder.address, n);
        n_taken_ -= n;
    }
    given_back_.notify_all();
}

uint64_t SharedPlaces::n_taken() const {
    MutexLock lock(mutex_);
    return n_taken_;
}

uint64_t SharedPlaces::n_max() const {
    MutexLock lock(mutex_);
    return n_max_;
}

void SharedPlaces::set_max(uint64_t n_max) {
    MutexLock lock(mutex_);
    n_max_ = n_max;
}

}  // namespace lorad::server::access
