#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {

void RowKernels::embed(Recorder& recorder, const EmbedParams& params, WeightKind table, uint32_t rows) {
    uint32_t size = threads(128, 32);
    struct Constants {
        uint32_t threads, weights;
    };
    const Kernel* k = kernel("embed", Constants{.threads = size, .weights = table.constant()});
    if (k == nullptr) return;
    DispatchInfo info{
        "embed", uint64_t{rows} * (bytes_of(table.format, kBrickRows, params.hidden) / kBrickRows + params.hidden * 4),
        0};
    recorder.dispatch(*k, params, ceil_div(ceil_div(params.hidden, 4), size), rows, 1, info);
}

}  // namespace lorad::gpu
