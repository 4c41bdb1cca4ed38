// The tests at the start: each fast kernel computes something small, which has to equal what the portable kernels make
// of it; what fails is taken from the ladder.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "gpu/device.h"
#include "gpu/kernels/kernels.h"

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

  private:
    Status run_all();
    Status registers();
    Status products(ScalarType type);
    Status residual(ScalarType type);
    Status packed(ScalarType type);
    Status experts(WeightKind weights);
    Status packed_experts(ScalarType type);
    Status shrink(ScalarType type);
    Status gated_act(ScalarType type);
    Status attention();
    Status attention_from_qkv();
    Status recurrences();

    std::string record_key() const;
    std::string results() const;               // as the record has them
    bool take_results(std::string_view text);  // false: they are none, or not of this ladder
    void tell_progress(std::string_view what);
    // Those of self_test, which are remembered with the results.
    void remember_left_out(std::string_view kernel, const self_test::Deviation& deviation);
    void tell_left_out(std::string_view kernel, const Device& device, const self_test::Deviation& deviation);
    void tell_left_out_by_lanes(std::string_view kernel, const Device& device, const self_test::Deviation& deviation);

    Device& device_;
    KernelSet& kernels_;
    KernelFacts& facts_;
    bool is_conclusive_ = true;  // every test computed something
    std::string told_;           // "\tKERNEL (DEVIATION)" for each that was left out with a warning
    std::chrono::steady_clock::time_point last_told_ = std::chrono::steady_clock::now();
};

}  // namespace lorad::gpu
