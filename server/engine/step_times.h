// How many rows of prompts a step may have beside decodes so that those do not wait: from what steps
// have taken. Pure; engine thread only.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lorad::server {

class StepTimes {
  public:
    // A step with prompts should take at most `stretch` times as long as one without.
    StepTimes(uint32_t n_rows_min, uint32_t n_rows_max, double stretch)
        : n_rows_min_(n_rows_min), n_rows_max_(n_rows_max), stretch_(stretch) {}

    // A step that had decodes. Steps with a first recording of their shape are slow once; a single
    // one moves the averages little.
    void observe(uint32_t n_prefill_rows, double seconds) {
        ++n_since_quiet_;
        if (n_prefill_rows == 0) {
            mix(quiet_s_, seconds);
            n_since_quiet_ = 0;
        } else if (quiet_s_ > 0) {
            mix(row_s_, std::max(seconds - quiet_s_, 0.0) / n_prefill_rows);
        }
    }

    // Whole multiples of n_rows_min, so that steps have few different shapes. 0 now and then where
    // prompts never end: what a step takes without them has to be known.
    uint32_t n_prefill_rows() const {
        if (n_since_quiet_ >= (quiet_s_ <= 0 ? 8u : 256u)) return 0;
        if (quiet_s_ <= 0 || row_s_ <= 0) return n_rows_min_;
        double n = std::min((stretch_ - 1) * quiet_s_ / row_s_, double(n_rows_max_));
        return std::clamp(uint32_t(n) / n_rows_min_ * n_rows_min_, n_rows_min_,
                          std::max(n_rows_min_, n_rows_max_));
    }

  private:
    static void mix(double& average, double seconds) {
        constexpr double kNewest = 0.1;
        average = average <= 0 ? seconds : average + kNewest * (seconds - average);
    }

    const uint32_t n_rows_min_, n_rows_max_;
    const double stretch_;
    double quiet_s_ = 0;  // of a step without prompts; 0: not seen yet
    double row_s_ = 0;    // that a row of a prompt adds
    uint32_t n_since_quiet_ = 0;
};

}  // namespace lorad::server
