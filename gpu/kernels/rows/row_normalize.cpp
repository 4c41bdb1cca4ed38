#include <algorithm>
#include <bit>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {

void RowKernels::row_normalize(Recorder& recorder, RowOperation operation, const RowNormalizeParams& params,
                               ScalarType type, uint32_t rows, uint32_t row_threads) {
    // More threads read sooner and join later: measured for rows of 1,024 (docs/PERFORMANCE.md, "Single operations").
    const bool is_wide =
        operation == RowOperation::kSoftmax || (operation == RowOperation::kLayerNorm && type == ScalarType::kF32);
    const uint32_t columns = is_wide ? 8 : 16;
    uint32_t size = threads(threads_for(ceil_div(params.n_columns, columns), 32, 1024), 32);
    if (row_threads != 0) size = within_limit(capabilities(), std::bit_floor(row_threads));
    const uint32_t lanes = capabilities().subgroup_size;
    size = std::max(size, lanes);
    struct Constants {
        uint32_t threads, type, columns, operation, lanes;
    };
    const Kernel* k = kernel("row_normalize",
                             Constants{.threads = size,
                                       .type = static_cast<uint32_t>(type),
                                       .columns = params.n_columns,
                                       .operation = static_cast<uint32_t>(operation),
                                       .lanes = lanes},
                             lanes);
    if (k == nullptr) return;
    const char* const names[] = {"softmax", "layer_norm", "rms_norm_rows"};
    recorder.dispatch(
        *k, params, rows, 1, 1,
        {names[static_cast<uint32_t>(operation)], uint64_t{rows} * params.n_columns * 2 * bytes_of(type), 0});
}

}  // namespace lorad::gpu
