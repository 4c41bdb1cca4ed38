#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {

void KernelSet::sample_draw(Recorder& recorder, const SampleChoiceParams& params, uint32_t logit_rows) {
    const Kernel* k = kernel("sample_draw", {threads(1024, 64)});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, 1, logit_rows, 1, {"sample_draw", uint64_t{logit_rows} * params.vocab * 4, 0});
}

}  // namespace lorad::gpu
