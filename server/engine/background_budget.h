// Decides how long background work may use the device behind a step of served requests. Pure; engine thread only.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lorad::server {

struct BackgroundShare {
    double share = 0.5;            // upper bound on its part of the device's time while others are served
    double latency_factor = 1.25;  // a step with background work behind it takes at most this many times as long
};

class BackgroundBudget {
  public:
    explicit BackgroundBudget(const BackgroundShare& share) : share_(share) {}

    // Called after each step; is_quiet: no background work ran beside it. Returns the seconds that background work may
    // run now; 0: none. If even the smallest piece exceeds the bound, one runs every kRareSteps steps: so few do not
    // move the 99th percentile.
    double after_step(double seconds, bool is_quiet) {
        if (is_quiet) quiet_s_ = quiet_s_ == 0 ? seconds : 0.8 * quiet_s_ + 0.2 * seconds;
        if (quiet_s_ == 0) return 0;
        const double share = std::clamp(share_.share, 0.0, 0.95);
        credit_s_ = std::min(credit_s_ + share / (1 - share) * quiet_s_, kCreditSteps * quiet_s_);
        // Every kQuietEvery-th step has no background work, to measure a step by itself.
        if (++n_steps_ % kQuietEvery == 0 || credit_s_ <= 0) return 0;
        const double bound_s = (share_.latency_factor - 1) * quiet_s_;
        if (!is_rare_) return std::min(reach_ * bound_s, credit_s_);
        if (n_steps_ - last_rare_ < kRareSteps) return 0;
        last_rare_ = n_steps_;
        return kReachMin * bound_s;
    }

    // Reports the time of a turn with that budget. The duration of pieces is a guess: after one over the bound, budgets
    // shrink and then grow slowly, so that fewer than one of a hundred pieces is over it.
    void ran(double budget_s, double seconds) {
        credit_s_ -= seconds;
        const double bound_s = (share_.latency_factor - 1) * quiet_s_;
        if (seconds <= bound_s) {
            is_rare_ = false;
            reach_ = std::min(1.0, reach_ + kReachGrowth);
            return;
        }
        is_rare_ = budget_s <= kReachMin * bound_s * kSame;
        reach_ = std::max(kReachMin, reach_ * std::max(kReachFall, kReachAim * bound_s / seconds));
    }

  private:
    static constexpr uint64_t kRareSteps = 128, kQuietEvery = 8;
    static constexpr double kCreditSteps = 4;
    static constexpr double kReachMin = 0.2, kReachFall = 0.5, kReachAim = 0.9, kReachGrowth = 0.0005;
    static constexpr double kSame = 1.2;  // budgets up to this factor apart count as the same

    const BackgroundShare share_;
    double quiet_s_ = 0;    // time of a step by itself
    double credit_s_ = 0;   // device time earned by the share
    double reach_ = 1;      // the part of the bound that a budget may use
    bool is_rare_ = false;  // even the smallest piece takes longer than the bound leaves
    uint64_t n_steps_ = 0, last_rare_ = 0;
};

}  // namespace lorad::server
