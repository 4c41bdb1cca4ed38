#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {

void RowKernels::sum_parts(Recorder& recorder, const SumPartsParams& params, const ConsumerShape& shape) {
    CHECK(params.n_modules >= 1 && params.n_modules <= kSumModulesMax);
    const uint32_t n = params.module_end[params.n_modules - 1];
    CHECK(n > 0 && n <= params.y_stride && n <= params.to_stride);
    const uint32_t size = threads(128, 32);
    struct Constants {
        uint32_t threads, splits, lora, has_bias, whole_rows;
    };
    const Kernel* k = kernel("sum_parts", Constants{.threads = size,
                                                    .splits = shape.n_splits,
                                                    .lora = static_cast<uint32_t>(shape.lora),
                                                    .has_bias = params.bias != 0,
                                                    .whole_rows = shape.whole_rows});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, ceil_div(n, size), shape.rows, 1,
                      {"sum_parts", uint64_t{shape.rows} * n * 4 * (shape.n_splits + 1), 0});
}

}  // namespace lorad::gpu
