#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {

void SamplingKernels::scale_logits(Recorder& recorder, const ScaleLogitsParams& params, uint32_t logit_rows) {
    const uint32_t size = threads(256, 32);
    const Kernel* k = kernel("scale_logits", WorkgroupConstants{.threads = size});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, ceil_div(ceil_div(params.vocab, 4), size), logit_rows, 1,
                      {"scale_logits", uint64_t{logit_rows} * params.vocab * 8, 0});
}

}  // namespace lorad::gpu
