// Work for the device that nobody waits for, such as training: done by the engine's thread between steps.
#pragma once

#include <chrono>

namespace lorad::server {

// Engine thread, but has_work() from any.
class BackgroundWork {
  public:
    virtual ~BackgroundWork() = default;
    virtual bool has_work() const = 0;
    // Pieces for about so long, at least one. Returns once the device has done them. What fails is for whoever the work
    // belongs to.
    virtual void run(std::chrono::microseconds budget) = 0;
};

}  // namespace lorad::server
