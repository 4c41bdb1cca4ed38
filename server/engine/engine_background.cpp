// Background work between steps.
#include <algorithm>

#include "server/engine/engine.h"

namespace lorad::server {
namespace {

constexpr double kMicrosecond = 1e-6;

}  // namespace

// Behind a step, or with nobody to serve. False where there is nothing to run, or not now.
bool Engine::run_background(double budget_s) {
    if (background_ == nullptr || budget_s <= 0 || draining_ || !background_->has_work()) return false;
    const auto begin = time_now();
    background_->run(std::chrono::microseconds(std::max<int64_t>(1, int64_t(budget_s / kMicrosecond))));
    const std::chrono::duration<double> taken = time_now() - begin;
    // The device first finishes the step in flight.
    const std::chrono::duration<double> gone = begin - last_finish_;
    const double in_flight_s = in_flight_.empty() ? 0.0 : std::max(0.0, last_step_s_ - gone.count());
    const double own_s = std::max(0.0, taken.count() - in_flight_s);
    background_turns_.ran(budget_s, own_s);
    background_us_ += uint64_t(own_s / kMicrosecond);
    for (Flight& flight : in_flight_) flight.is_disturbed = true;
    next_is_disturbed_ = true;
    return true;
}

void Engine::background_behind_step() {
    if (background_ == nullptr || !background_->has_work()) return;
    const double budget_s = background_turns_.after_step(last_step_s_, was_last_quiet_);
    if (budget_s <= 0) return;
    publish();  // whoever waits for the step's tokens does not wait for this
    run_background(budget_s);
}

}  // namespace lorad::server
