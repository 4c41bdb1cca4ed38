#include <bit>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {

void RowKernels::ple_rows(Recorder& recorder, const PleRowsParams& params, ScalarType table_type, uint32_t n_layers,
                          uint32_t rows) {
    CHECK(params.n % 4 == 0);
    struct Constants {
        uint32_t threads, table_type;
    };
    const Kernel* k =
        kernel("ple_rows", Constants{.threads = threads(64, 32), .table_type = static_cast<uint32_t>(table_type)});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, n_layers, rows, 1,
                      {"ple_rows", uint64_t{rows} * n_layers * params.n * (8 + bytes_of(table_type)), 0});
}

void RowKernels::ple_gate(Recorder& recorder, const PleGateParams& params, const ConsumerShape& shape,
                          ScalarType act_type) {
    CHECK(params.n % 4 == 0 && shape.lora == LoraLevel::kNone);
    const uint32_t size = threads(64, 32);
    struct Constants {
        uint32_t threads, act_type, splits, whole_rows;
    };
    const Kernel* k = kernel("ple_gate", Constants{.threads = size,
                                                   .act_type = static_cast<uint32_t>(act_type),
                                                   .splits = shape.n_splits,
                                                   .whole_rows = shape.whole_rows});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, ceil_div(params.act_stride / 4, size), shape.rows, 1,
                      {"ple_gate", uint64_t{shape.rows} * params.n * 4 * (shape.n_splits + 2), 0});
}

}  // namespace lorad::gpu
