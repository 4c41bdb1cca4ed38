// When the step after the one in flight is made: as late as the device does not have to wait for it, so that whoever comes meanwhile is in it
// instead of the one after. Pure; engine thread only.
#pragma once

#include <algorithm>

namespace lorad::server {

class PlanAhead {
  public:
    // Before a step is made: how long that can wait. expected_s: what the step in flight takes, 0 if unknown; gone_s: how much of it is over.
    double rest_s(double expected_s, double gone_s) const {
        return std::max(expected_s - gone_s - std::max(ahead_s_, kShare * expected_s), 0.0);
    }

    // How long the device still worked on a step when the next one had been submitted after a rest. What steps take would not show that a
    // rest was too long: then they look slower than they are, and the next rest would be longer.
    void observe(double rested_s, double waited_s) {
        if (waited_s >= kLeastSeconds / 4) {
            ahead_s_ = std::max(ahead_s_ * kDecay, kLeastSeconds);
        } else {
            ahead_s_ = std::min(std::max(2 * ahead_s_, ahead_s_ + rested_s / 2), kMostSeconds);
        }
    }

  private:
    static constexpr double kLeastSeconds = 0.002, kMostSeconds = 0.2;
    static constexpr double kShare = 0.1;  // of a step: it does not take the same each time
    static constexpr double kDecay = 0.99;

    double ahead_s_ = kLeastSeconds;
};

}  // namespace lorad::server
