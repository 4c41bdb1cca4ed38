#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {

void RowKernels::gather_rows(Recorder& recorder, const GatherRowsParams& params, uint32_t rows) {
    const Kernel* k = kernel("gather_rows", WorkgroupConstants{.threads = threads(256, 32)});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, rows, 1, 1, {"gather_rows", uint64_t{rows} * params.n_words * 32, 0});
}

}  // namespace lorad::gpu
