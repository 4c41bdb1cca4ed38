#include "gpu/facts/work_rates.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "proto/base/format.h"

namespace lorad::gpu {
namespace {

struct Rates {
    double flops_per_us, bytes_per_us;
};

// A tenth or less of what usual devices of the kind do.
Rates first_guess(DeviceSpeed speed) {
    switch (speed) {
        case DeviceSpeed::kMatrices: return {5e6, 200e3};
        case DeviceSpeed::kDiscrete: return {1e6, 50e3};
        case DeviceSpeed::kOther: return {100e3, 10e3};
        case DeviceSpeed::kCpu: return {5e3, 1e3};
    }
    return {5e3, 1e3};
}

constexpr double kBeginUs = 4;  // of a dispatch

}  // namespace

WorkRates::WorkRates(DeviceSpeed speed, double slowness)
    : flops_per_us_(first_guess(speed).flops_per_us),
      bytes_per_us_(first_guess(speed).bytes_per_us),
      slowness_(slowness) {}

double WorkRates::us_of(const Work& work) const {
    return slowness_ * (kBeginUs * work.n + work.flops / flops_per_us_.load() + work.bytes / bytes_per_us_.load());
}

// Each rate changes by its share of the guess. What took longer than thought counts at once, what took less time by and
// by.
void WorkRates::learn(const Work& work, double us) {
    constexpr double kLongest = 60e6, kLearned = 0.5, kFactorMax = 16;
    if (!(us > 0) || us > kLongest) return;
    const double flops_us = work.flops / flops_per_us_.load(), bytes_us = work.bytes / bytes_per_us_.load();
    const double guessed = kBeginUs * work.n + flops_us + bytes_us;
    if (!(guessed > 0)) return;
    const double factor = std::clamp(us / guessed, 1 / kFactorMax, kFactorMax);
    const double change = factor > 1 ? factor - 1 : kLearned * (factor - 1);
    const auto apply = [&](std::atomic<double>& rate, double share) {
        rate.store(std::clamp(rate.load() / (1 + change * share), 1.0, 1e12));
    };
    apply(flops_per_us_, flops_us / guessed);
    apply(bytes_per_us_, bytes_us / guessed);
}

std::string WorkRates::text() const { return format("{:.0f} {:.0f}", flops_per_us_.load(), bytes_per_us_.load()); }

bool WorkRates::take(std::string_view text) {
    double flops = 0, bytes = 0;
    const char* const end = text.data() + text.size();
    const auto first = std::from_chars(text.data(), end, flops);
    if (first.ec != std::errc() || first.ptr == end || *first.ptr != ' ') return false;
    const auto second = std::from_chars(first.ptr + 1, end, bytes);
    if (second.ec != std::errc() || second.ptr != end || !(flops >= 1) || !(bytes >= 1)) return false;
    if (!std::isfinite(flops) || !std::isfinite(bytes)) return false;
    flops_per_us_ = flops;
    bytes_per_us_ = bytes;
    return true;
}

}  // namespace lorad::gpu
