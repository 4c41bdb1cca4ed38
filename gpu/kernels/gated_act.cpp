#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {

void KernelSet::gated_act(Recorder& recorder, const GatedActParams& params, const ConsumerShape& shape,
                          Activation activation, ScalarType act_type) {
    uint32_t size = threads(128, 32);
    const Kernel* k = kernel("gated_act", {size, static_cast<uint32_t>(act_type), static_cast<uint32_t>(activation),
                                           shape.n_splits, static_cast<uint32_t>(shape.lora), params.bias != 0, params.ffn % 4 == 0,
                                           params.ffn % 16 == 0});
    if (k == nullptr) return;
    uint64_t row_bytes = uint64_t{params.ffn} * (8 * shape.n_splits + bytes_of(act_type));
    recorder.dispatch(*k, params, ceil_div(params.act_stride / 4, size), shape.rows, 1,
                      {"gated_act", shape.rows * row_bytes, 0});
}

}  // namespace lorad::gpu
