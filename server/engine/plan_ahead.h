// Decides when to make the step after the one in flight: as late as possible without idling the device, so that
// requests that arrive meanwhile join it. Pure; engine thread only.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>

namespace lorad::server {

class PlanAhead {
  public:
    // Steps that take about the same time.
    struct Kind {
        uint32_t n_rows = 0;  // padded to a recorded size
        // of the rows of prompts: each has contexts twice as long as the one before; 0: no such rows
        uint32_t context_class = 0;
        bool has_adapters = false;

        auto operator<=>(const Kind&) const = default;
    };

    // Returns how long the next step's making can wait while a step is in flight that began gone_s ago.
    double rest_s(const Kind& in_flight, double gone_s) const {
        const double expected_s = least(in_flight);
        return std::clamp(expected_s - gone_s - std::max(ahead_s_, kShare * expected_s), 0.0, kMostSeconds);
    }

    // Called after every finished step. rested_s: for how long the next one was put off while it ran, or 0; waited_s:
    // how long the device still worked on it after the next one was submitted. Returns false if that was nothing: the
    // rest was too long, and the step's time is unknown.
    bool observe(const Kind& kind, double seconds, double rested_s, double waited_s) {
        if (rested_s > 0 && waited_s < kLeastSeconds / 4) {
            ahead_s_ = std::max(2 * ahead_s_, ahead_s_ + rested_s / 2);
            return false;
        }
        ahead_s_ = std::max(ahead_s_ * kDecay, kLeastSeconds);
        Last& last = taken_[kind];
        last.seconds[last.n++ % kLast] = seconds;
        return true;
    }

  private:
    static constexpr double kLeastSeconds = 0.002;
    static constexpr double kMostSeconds = 0.1;  // longest rest: the device's health is not checked in it
    static constexpr double kShare = 0.1;        // of a step's time, which varies
    static constexpr double kDecay = 0.99;
    static constexpr size_t kLast = 4;

    struct Last {
        std::array<double, kLast> seconds{};
        size_t n = 0;
    };

    // The least time of the last kLast steps of this kind; 0 if there were fewer.
    double least(const Kind& kind) const {
        const auto known = taken_.find(kind);
        return known == taken_.end() || known->second.n < kLast ? 0 : *std::ranges::min_element(known->second.seconds);
    }

    std::map<Kind, Last> taken_;  // some hundreds at most: there are few kinds
    double ahead_s_ = kLeastSeconds;
};

}  // namespace lorad::server
