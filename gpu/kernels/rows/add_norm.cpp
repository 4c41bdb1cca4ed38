#include <bit>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {

void RowKernels::add_norm(Recorder& recorder, const AddNormParams& params, const ConsumerShape& shape,
                          ScalarType act_type, uint32_t fragment_order, const Closing& closing) {
    CHECK(params.xn_fragments == 0 || act_type != ScalarType::kF32);
    const uint32_t threads_most = has_few_registers(capabilities()) ? 512 : 1024;
    uint32_t size = threads(threads_for(ceil_div(params.hidden, 4), 128, threads_most), 32);
    struct Constants {
        uint32_t threads, act_type, hidden, splits, lora, has_bias, has_norm, slot_norms, whole_rows, in_rows,
            in_blocks, after, multiplier, stream_scale, raw;
    };
    const Kernel* k = kernel("add_norm", Constants{.threads = size,
                                                   .act_type = static_cast<uint32_t>(act_type),
                                                   .hidden = params.hidden,
                                                   .splits = shape.n_splits,
                                                   .lora = static_cast<uint32_t>(shape.lora),
                                                   .has_bias = params.bias != 0,
                                                   .has_norm = params.gamma != 0,
                                                   .slot_norms = params.slot_norms != 0,
                                                   .whole_rows = shape.whole_rows,
                                                   .in_rows = params.xn != 0,
                                                   .in_blocks = params.xn_fragments != 0 ? 1 + fragment_order : 0,
                                                   .after = params.after_gamma == 0 ? 0 : 1 + closing.n_after_slots,
                                                   .multiplier = std::bit_cast<uint32_t>(closing.multiplier),
                                                   .stream_scale = std::bit_cast<uint32_t>(closing.stream_scale),
                                                   .raw = params.gamma == 0 && closing.raw});
    if (k == nullptr) return;
    uint64_t row_bytes =
        uint64_t{params.hidden} * (4 * (shape.n_splits + 2) + (params.gamma != 0 ? bytes_of(act_type) : 0));
    recorder.dispatch(*k, params, shape.rows, 1, 1, {"add_norm", shape.rows * row_bytes, 0});
}

}  // namespace lorad::gpu
