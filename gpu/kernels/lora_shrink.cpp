#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {

void KernelSet::lora_shrink(Recorder& recorder, const LoraShrinkParams& params, ScalarType act_type,
                            const Buffer& step_state, uint64_t grid_offset) {
    uint32_t size = threads(threads_for(ceil_div(params.k, 8), 64, 512), 32);
    const Kernel* k = kernel("lora_shrink", {size, static_cast<uint32_t>(act_type)});
    if (k == nullptr) return;
    recorder.dispatch_indirect(*k, params, step_state, grid_offset, {"lora_shrink", 0, 0});
}

}  // namespace lorad::gpu
