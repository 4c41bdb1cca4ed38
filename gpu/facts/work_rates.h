// How long work takes on a device: guessed by its kind at first, and too long rather than too short; then learned from
// what the device took for earlier work. By it submissions are kept short: drivers reset a device whose submission
// takes some seconds.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace lorad::gpu {

// Of one dispatch, or of several.
struct Work {
    double flops = 0, bytes = 0;
    uint32_t n = 0;  // dispatches, copies and fills

    Work& operator+=(const Work& other) {
        flops += other.flops;
        bytes += other.bytes;
        n += other.n;
        return *this;
    }
};

enum class DeviceSpeed : uint8_t { kMatrices, kDiscrete, kOther, kCpu };

// Thread-safe.
class WorkRates {
  public:
    // slowness: for tests, by which the device is taken for slower than it is.
    explicit WorkRates(DeviceSpeed speed, double slowness = 1);

    double us_of(const Work& work) const;
    // The device took so long for it.
    void learn(const Work& work, double us);

    // For the next start: "FLOPS_PER_US BYTES_PER_US"; what is no such text is not taken.
    std::string text() const;
    bool take(std::string_view text);

    double flops_per_us() const { return flops_per_us_.load(); }
    double bytes_per_us() const { return bytes_per_us_.load(); }

  private:
    std::atomic<double> flops_per_us_, bytes_per_us_;
    const double slowness_;
};

}  // namespace lorad::gpu
