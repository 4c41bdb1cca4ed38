#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {

void RowKernels::norm_pair(Recorder& recorder, const NormPairParams& params, uint32_t rows) {
    CHECK(params.a_stride >= params.hidden && params.b_stride >= params.hidden && params.y_stride >= params.hidden);
    struct Constants {
        uint32_t threads, hidden;
    };
    const Kernel* k = kernel(
        "norm_pair", Constants{.threads = threads(threads_for(params.hidden, 128, 1024), 32), .hidden = params.hidden});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, rows, 1, 1, {"norm_pair", uint64_t{rows} * params.hidden * 12, 0});
}

}  // namespace lorad::gpu
