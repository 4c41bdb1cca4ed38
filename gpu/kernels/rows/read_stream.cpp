#include <algorithm>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {

void RowKernels::read_stream(Recorder& recorder, const ReadStreamParams& params, uint32_t loads) {
    const uint32_t size = threads(256, 32);
    struct Constants {
        uint32_t threads, loads;
    };
    const Kernel* k = kernel("read_stream", Constants{.threads = size, .loads = loads});
    if (k == nullptr) return;
    const uint32_t units = std::max(capabilities().n_compute_units_hint, 4u);
    const uint32_t grid = std::clamp(params.n_words / (size * loads), 1u, 16 * units);
    recorder.dispatch(*k, params, grid, 1, 1, {"read_stream", uint64_t{params.n_words} * 16, 0});
}

}  // namespace lorad::gpu
