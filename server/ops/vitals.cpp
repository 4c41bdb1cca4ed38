#include "server/ops/vitals.h"

#include <algorithm>

#include "proto/base/mutex.h"
#include "proto/base/thread.h"

namespace lorad::server::ops {

using std::chrono::milliseconds;

Vital judge(const Heartbeat& heartbeat, const VitalLimits& limits) {
    if (heartbeat.age >= limits.hang) return Vital::kHung;
    const milliseconds ready = std::max(limits.ready, std::min(heartbeat.longest_turn * 2, limits.hang / 2));
    return heartbeat.age >= ready ? Vital::kSlow : Vital::kWell;
}

Vitals::Vitals(Probes probes, const VitalLimits& limits) : probes_(std::move(probes)), limits_(limits) {
    thread_ = std::thread([this] { run(); });
}

Vitals::~Vitals() {
    {
        const MutexLock lock(mutex_);
        over_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void Vitals::run() {
    name_thread("lorad-vitals");
    MutexLock lock(mutex_);
    while (!over_) {
        lock.unlock();
        look_.beat();
        probes_.look_at_registry();
        look_.beat();  // the rest of the period is sleep
        lock.lock();
        changed_.wait_for(lock, kLookInterval, [this]() REQUIRES(mutex_) { return over_; });
    }
    look_.end();
}

Vital Vitals::state() const { return std::max(judge(probes_.engine(), limits_), judge(look_.read(), limits_)); }

std::string_view Vitals::slowest() const { return look_.read().age > probes_.engine().age ? "registry" : "engine"; }

bool Vitals::feeds(milliseconds watchdog) const {
    const milliseconds age = std::max(probes_.engine().age, look_.read().age);
    return age < std::max(limits_.ready, limits_.hang - watchdog);
}

}  // namespace lorad::server::ops
