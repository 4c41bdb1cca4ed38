// The input of plans beside a step's shape: the device's capabilities, the options, the fast kernels that passed their
// tests there, and what products took there. Planning needs no device, so a test may plan for any.
#pragma once

#include "gpu/device.h"
#include "gpu/kernels/kernel_ladder.h"
#include "gpu/kernels/kernel_options.h"
#include "gpu/kernels/tuning/measured_products.h"

namespace lorad::gpu {

struct KernelFacts {
    const DeviceCapabilities& capabilities;
    KernelSetOptions options;  // path: never kAuto once the ladder is known
    KernelLadder ladder = {};
    MeasuredProducts measured = {};  // nothing before KernelSet::tune()
};

// The base of all families' planners. Pure and cheap: the same answer every time. Any thread, once the tests at the
// start are over.
class Planner {
  public:
    // The type in which rms_norm, attention, add_norm and gated_act write what a product with these weights reads.
    ScalarType act_type(ScalarType weight_type) const {
        return ladder().has(weight_type) ? weight_type : ScalarType::kF32;
    }

  protected:
    explicit Planner(const KernelFacts& facts) : facts_(facts) {}
    const DeviceCapabilities& capabilities() const { return facts_.capabilities; }
    const KernelSetOptions& options() const { return facts_.options; }
    const KernelLadder& ladder() const { return facts_.ladder; }
    // Threads of a workgroup: on_gpu, halved until the device takes it; `small` on devices that want small ones
    // (DeviceCapabilities::small_workgroups).
    uint32_t threads(uint32_t on_gpu, uint32_t small) const;

    const KernelFacts& facts_;
};

}  // namespace lorad::gpu
