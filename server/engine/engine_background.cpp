// Background work between steps.
#include <algorithm>
#include <utility>

#include "server/engine/engine.h"

namespace lorad::server {
namespace {

constexpr double kMicrosecond = 1e-6;

}  // namespace

// Runs background work if nobody is served, or behind the step in flight; then the device continues with it while the
// next step is planned. False if there is nothing to run, or not now.
bool Engine::run_background(double budget_s, bool waits) {
    if (background_ == nullptr || budget_s <= 0 || draining_ || !background_->has_work()) return false;
    const double done_s =
        background_->run(std::chrono::microseconds(std::max<int64_t>(1, int64_t(budget_s / kMicrosecond))), waits);
    // Nothing is counted while nobody is served. Else the work done by now was submitted by the call before.
    const double its_budget_s = std::exchange(background_budget_s_, waits ? 0.0 : budget_s);
    if (!waits && its_budget_s > 0) background_budget_.ran(its_budget_s, done_s);
    background_us_ += uint64_t(done_s / kMicrosecond);
    if (waits) {
        for (Flight& flight : in_flight_) flight.is_disturbed = true;
    }
    next_is_disturbed_ = true;
    return true;
}

void Engine::background_behind_step() {
    if (background_ == nullptr || !background_->has_work()) return;
    const double budget_s = background_budget_.after_step(last_step_s_, was_last_quiet_);
    if (budget_s <= 0) return;
    publish();  // clients waiting for the step's tokens do not wait for this
    run_background(budget_s, false);
}

}  // namespace lorad::server
