#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/persistent/decode_rows_text.h"
#include "gpu/kernels/persistent/grid_barrier.h"

namespace lorad::gpu {
namespace {

// One workgroup for each multiprocessor, if the driver tells how many there are.
DecodeRowsProgram program_of(const DecodeRowsShape& shape, const DeviceCapabilities& caps) {
    return {shape, caps.n_compute_units_hint};
}

}  // namespace

bool PersistentPlanner::can_decode_rows(const DecodeRowsShape& shape) const {
    if (options().decode == PersistentDecode::kOff || options().batch_invariant ||
        !ladder().has(RungId::kWarpgroups, shape.type))
        return false;
    return program_of(shape, capabilities()).can_be();
}

uint64_t PersistentPlanner::decode_rows_sync_bytes(const DecodeRowsShape& shape) const {
    return sizeof(GridBarrierSync) +
           uint64_t{program_of(shape, capabilities()).square_entries()} * kDecodeRowsMax * sizeof(float);
}

void PersistentKernels::decode_rows(Recorder& recorder, DecodeRowsParams params, const DecodeRowsShape& shape) {
    const DecodeRowsProgram program = program_of(shape, capabilities());
    const char* name = shape.type == ScalarType::kBf16 ? "decode_rows_bf16" : "decode_rows_f16";
    const Kernel* k = kernel(name, DecodeRowsConstants{.threads = kDecodeRowsThreads,
                                                       .hidden = shape.hidden,
                                                       .q = shape.q,
                                                       .ffn = shape.ffn,
                                                       .qkv = shape.qkv,
                                                       .workgroups = program.workgroups});
    if (k == nullptr) return;
    params.max_polls = kGridBarrierPollsMax;
    const uint64_t elements =
        shape.hidden * (uint64_t{shape.q} + 3 * uint64_t{shape.ffn} + (params.qkv != 0 ? shape.qkv : 0));
    recorder.dispatch(*k, params, program.workgroups, 1, 1, {name, elements * 2, elements * 2 * kDecodeRowsMax});
}

}  // namespace lorad::gpu
