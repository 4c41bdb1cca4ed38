// Judges if the server still makes progress, for /health/live, /health/ready and the service manager's watchdog.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string_view>
#include <thread>

#include "proto/base/mutex.h"
#include "server/engine/heartbeat.h"

namespace lorad::server::ops {

struct VitalLimits {
    // A turn of the engine, or a look at the registry, may take this long before the server counts as not ready: new
    // requests should go elsewhere. Where recent steps took long it is two of them, up to half of `hang`.
    std::chrono::milliseconds ready{1500};
    // And this long before it counts as hung and wants to be restarted.
    std::chrono::milliseconds hang{10'000};
};

enum class Vital : uint8_t {
    kWell,
    kSlow,  // not ready; may come back
    kHung,  // not alive
};

// Pure.
Vital judge(const Heartbeat& heartbeat, const VitalLimits& limits);

// A thread of its own looks at the registry every kLookInterval, so that a lock that nobody gives back is found before
// a client finds it.
class Vitals {
  public:
    struct Probes {
        std::function<Heartbeat()> engine;       // any thread; never blocks
        std::function<void()> look_at_registry;  // takes and gives back its lock
    };
    static constexpr std::chrono::milliseconds kLookInterval{250};

    Vitals(Probes probes, const VitalLimits& limits);
    ~Vitals();
    Vitals(const Vitals&) = delete;
    Vitals& operator=(const Vitals&) = delete;

    // Any thread; never blocks.
    Vital state() const;
    // The part that is most behind: "engine" or "registry".
    std::string_view slowest() const;
    const VitalLimits& limits() const { return limits_; }
    // Returns true if the watchdog may be fed: the manager restarts the process `watchdog` after the first false, and
    // no sooner than limits().hang after the last turn.
    bool feeds(std::chrono::milliseconds watchdog) const;

  private:
    void run();

    const Probes probes_;
    const VitalLimits limits_;
    Pulse look_;
    Mutex mutex_;
    Condition changed_;
    bool over_ GUARDED_BY(mutex_) = false;
    std::thread thread_;
};

}  // namespace lorad::server::ops
