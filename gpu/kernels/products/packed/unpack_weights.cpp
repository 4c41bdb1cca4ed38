#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {

void ProductKernels::unpack_weights(Recorder& recorder, const UnpackWeightsParams& params, WeightKind weights) {
    CHECK(params.stride % kWeightAlign == 0 && params.n > 0 && params.n <= params.n_rows);
    // as in the shader
    constexpr uint32_t kColumns = 128, kBrickThreads = kBrickRows * kColumns / 8, kRows = 4 * kBrickRows;
    const uint32_t size = threads(256, 32);
    struct Constants {
        uint32_t threads, weights, type;
    };
    const Kernel* k =
        kernel("unpack_weights",
               Constants{.threads = size, .weights = weights.constant(), .type = static_cast<uint32_t>(weights.type)});
    if (k == nullptr) return;
    const uint64_t bytes = bytes_of(weights.format, params.n, params.stride) +
                           uint64_t{params.n_rows} * params.stride * bytes_of(weights.type);
    recorder.dispatch(*k, params, ceil_div(params.stride, kColumns) * kBrickThreads / size,
                      ceil_div(params.n_rows, kRows), 1, {"unpack_weights", bytes, 0});
}

}  // namespace lorad::gpu
