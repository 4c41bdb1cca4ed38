#include "server/ops/lifecycle.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include <unistd.h>

#include "proto/base/format.h"
#include "proto/base/log.h"
#include "server/memory_return.h"
#include "server/ops/signals.h"

namespace lorad::server::ops {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kLook{100};
// After the drain's time: the last step ends, streams get their errors, answers leave.
constexpr milliseconds kLastStep{5000};

}  // namespace

// Feeds the watchdog and says when the server stalls, once for each time that it does.
void Lifecycle::tend() {
    const Vital state = vitals_.state();
    if (state != told_) {
        if (state == Vital::kWell) {
            log_info("the {} gets on again", vitals_.slowest());
            manager_.status(status_);
        } else {
            const char* what =
                state == Vital::kHung ? "hangs: the server counts as dead" : "stalls: the server is not ready";
            log_warn("the {} {}", vitals_.slowest(), what);
            manager_.status(format("the {} {}", vitals_.slowest(), what));
        }
        told_ = state;
    }
    const auto interval = manager_.watchdog_interval();
    const Clock::time_point now = Clock::now();
    if (!interval || now - fed_ < *interval || !vitals_.feeds(*manager_.watchdog_time())) return;
    manager_.watchdog();
    fed_ = now;
}

void Lifecycle::reload() {
    manager_.reloading();
    Result<Reload::Taken> taken = reload_.run();
    if (taken.ok()) {
        log_info("configuration read again; changed: {}",
                 taken->changed.empty() ? "nothing" : format("{}", fmt::join(taken->changed, ", ")));
        if (!taken->need_restart.empty()) log_warn("a restart is needed for: {}", fmt::join(taken->need_restart, ", "));
    } else {
        log_error("configuration not taken, the old one stays: {}", taken.error().message);
    }
    manager_.ready(status_);
}

void Lifecycle::serve(const std::string& status) {
    status_ = status;
    manager_.ready(status_);
    const milliseconds look = std::min(kLook, manager_.watchdog_interval().value_or(kLook));
    while (!stop_asked() && !engine_.failed()) {
        tend();
        return_memory();
        wait_for_signal(look);
        if (!stop_asked() && reload_asked()) reload();
    }
}

void Lifecycle::drain() {
    const std::chrono::seconds timeout(reload_.current().drain_timeout_s);
    if (stop_asked()) log_info("draining: running requests have {} s", timeout.count());
    manager_.stopping("draining: running requests end", timeout + kLastStep);
    status_ = "draining: running requests end";
    std::atomic<bool> drained{false};
    std::thread drainer([&] {
        engine_.drain(timeout);
        drained = true;
    });
    const Clock::time_point last = Clock::now() + timeout + kLastStep;
    while (!drained) {
        tend();
        std::this_thread::sleep_for(milliseconds(10));
        if (Clock::now() > last && vitals_.state() == Vital::kHung) {
            log_error("the {} hangs and cannot be stopped; the process ends without it", vitals_.slowest());
            _exit(1);
        }
    }
    drainer.join();
}

}  // namespace lorad::server::ops
