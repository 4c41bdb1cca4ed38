// Work for the device that nobody waits for, such as training: done by the engine's thread between steps.
#pragma once

#include <chrono>

namespace lorad::server {

// Engine thread, but has_work() from any.
class BackgroundWork {
  public:
    virtual ~BackgroundWork() = default;
    virtual bool has_work() const = 0;
    // Pieces for about so long, at least one. `waits`: returns once the device has done them; else they are submitted
    // behind what is there, and are waited for by the next call. Returns the seconds of the device that were found to
    // be used since the last call. What fails is for whoever the work belongs to.
    virtual double run(std::chrono::microseconds budget, bool waits) = 0;
};

}  // namespace lorad::server
