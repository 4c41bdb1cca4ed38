// The tests at the start: each fast kernel computes something small, which has to equal what the portable kernels make
// of it; what fails is taken from the ladder.
#pragma once

#include "gpu/device.h"
#include "gpu/kernels/kernels.h"

namespace lorad::gpu {

class LadderTests {
  public:
    // `facts` are those of `kernels`.
    LadderTests(Device& device, KernelSet& kernels, KernelFacts& facts)
        : device_(device), kernels_(kernels), facts_(facts) {}

    Status run();

  private:
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

    Device& device_;
    KernelSet& kernels_;
    KernelFacts& facts_;
};

}  // namespace lorad::gpu
