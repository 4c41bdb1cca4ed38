#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {

void RowKernels::finish_sums(Recorder& recorder, const FinishSumsParams& params, const ConsumerShape& shape) {
    CHECK(params.n_modules > 0 && params.n_modules <= kFinishModules);
    const uint32_t n = params.module_end[params.n_modules - 1], size = threads(256, 32);
    struct Constants {
        uint32_t threads, splits, lora, whole_rows;
    };
    const Kernel* k = kernel("finish_sums", Constants{.threads = size,
                                                      .splits = shape.n_splits,
                                                      .lora = static_cast<uint32_t>(shape.lora),
                                                      .whole_rows = shape.whole_rows});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, shape.rows, params.n_modules, 1,
                      {"finish_sums", uint64_t{shape.rows} * n * 4 * (shape.n_splits + 1), 0});
}

}  // namespace lorad::gpu
