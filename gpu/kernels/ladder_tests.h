// The tests at the start: each fast kernel computes something small, which has to equal what the portable kernels make
// of it; what fails is taken from the ladder. Which test shows which rung: rungs.cpp.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "gpu/device.h"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/rungs.h"

namespace lorad::gpu {

namespace self_test {
struct Deviation;
}

class LadderTests {
  public:
    // `facts` are those of `kernels`.
    LadderTests(Device& device, KernelSet& kernels, KernelFacts& facts)
        : device_(device), kernels_(kernels), facts_(facts) {}

    // What the device's StartRecord has of an earlier start is taken from there (but see Device::repeats_tests()).
    // Tests that came to no result, for lack of memory say, are run again at the next start.
    Status run();

    // For each RungTest.
    Device& device() { return device_; }
    KernelSet& kernels() { return kernels_; }
    KernelSetOptions& options() { return facts_.options; }
    KernelLadder& ladder() { return facts_.ladder; }
    // Takes a rung from the ladder. With a warning that names the kernel, which is remembered with the results; of
    // kernels that fill matrices by lanes as self_test::tell_left_out_by_lanes() has it; or, where nothing is wrong
    // with a device that the kernel does not suit, said for debugging alone.
    void leave_out(RungId rung, ScalarType type, std::string_view kernel, const self_test::Deviation& deviation);
    void leave_out_by_lanes(RungId rung, ScalarType type, std::string_view kernel,
                            const self_test::Deviation& deviation);
    void leave_out_quietly(RungId rung, ScalarType type, std::string_view kernel,
                           const self_test::Deviation& deviation);
    // The warning alone, of what is in no ladder.
    void tell_left_out(std::string_view kernel, const self_test::Deviation& deviation);

  private:
    Status run_all();
    std::string record_key() const;
    std::string results() const;               // as the record has them
    bool take_results(std::string_view text);  // false: they are none, or not of this ladder
    void tell_progress(std::string_view what);
    void remember_left_out(std::string_view kernel, const self_test::Deviation& deviation);

    Device& device_;
    KernelSet& kernels_;
    KernelFacts& facts_;
    bool is_conclusive_ = true;  // every test computed something
    std::string told_;           // "\tKERNEL (DEVIATION)" for each that was left out with a warning
    std::chrono::steady_clock::time_point last_told_ = std::chrono::steady_clock::now();
};

}  // namespace lorad::gpu
