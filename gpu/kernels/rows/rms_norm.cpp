#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {

void RowKernels::rms_norm(Recorder& recorder, const RmsNormParams& params, ScalarType act_type, uint32_t rows,
                          uint32_t fragment_order) {
    CHECK(params.y_fragments == 0 || act_type != ScalarType::kF32);
    uint32_t size = threads(threads_for(ceil_div(params.hidden, 4), 128, 1024), 32);
    struct Constants {
        uint32_t threads, act_type, hidden, slot_norms, in_blocks, raw;
    };
    const Kernel* k = kernel("rms_norm", Constants{.threads = size,
                                                   .act_type = static_cast<uint32_t>(act_type),
                                                   .hidden = params.hidden,
                                                   .slot_norms = params.slot_norms != 0,
                                                   .in_blocks = params.y_fragments != 0 ? 1 + fragment_order : 0,
                                                   .raw = params.gamma == 0});
    if (k == nullptr) return;
    DispatchInfo info{"rms_norm", uint64_t{rows} * params.hidden * (4 + bytes_of(act_type)), 0};
    recorder.dispatch(*k, params, rows, 1, 1, info);
}

}  // namespace lorad::gpu
