// Work for the device that nobody waits for, such as training: done by the engine's thread between steps.
#pragma once

#include <chrono>

namespace lorad::server {

// Engine thread, but has_work() from any.
class BackgroundWork {
  public:
    virtual ~BackgroundWork() = default;
    virtual bool has_work() const = 0;
    // Runs pieces for about `budget`, at least one. `waits`: returns once the device has done them; else they are
    // submitted behind present work, and the next call waits for them. Returns the device seconds found to be used
    // since the last call. Failures go to the owner of the work.
    virtual double run(std::chrono::microseconds budget, bool waits) = 0;
};

}  // namespace lorad::server
