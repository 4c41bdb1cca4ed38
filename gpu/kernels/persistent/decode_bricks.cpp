#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/persistent/decode_bricks_text.h"

namespace lorad::gpu {
namespace {

// All workgroups that a device has at work at once, if the driver tells how many multiprocessors there are.
DecodeBricksProgram bricks_program(const DecodeBricksShape& shape, const DeviceCapabilities& caps) {
    return {shape, caps.n_compute_units_hint * kDecodeBricksWorkgroups};
}

}  // namespace

bool PersistentPlanner::can_decode_bricks(const DecodeBricksShape& shape) const {
    if (options().decode == PersistentDecode::kOff || options().batch_invariant ||
        !ladder().has(RungId::kPackedRows, shape.type))
        return false;
    return bricks_program(shape, capabilities()).can_be();
}

uint64_t PersistentPlanner::decode_bricks_sync_bytes(const DecodeBricksShape& shape) const {
    return bricks_program(shape, capabilities()).sync_bytes();
}

void PersistentKernels::decode_bricks(Recorder& recorder, DecodeBricksParams params, const DecodeBricksShape& shape) {
    const DecodeBricksProgram program = bricks_program(shape, capabilities());
    const char* name = shape.type == ScalarType::kBf16 ? "decode_bricks_bf16" : "decode_bricks_f16";
    DecodeBricksConstants constants{.threads = kDecodeBricksWarps * 32,
                                    .workgroups = program.workgroups,
                                    .rows = program.sum_rows(),
                                    .hidden = shape.hidden,
                                    .q = shape.q,
                                    .ffn = shape.ffn,
                                    .o = number_of(shape.o),
                                    .gate_up = number_of(shape.gate_up),
                                    .down = number_of(shape.down),
                                    .qkv_formats = {},
                                    .qkv_rows = {}};
    uint64_t bytes = bytes_of(shape.o, shape.hidden, shape.q) +
                     bytes_of(shape.gate_up, 2 * uint64_t{shape.ffn}, shape.hidden) +
                     bytes_of(shape.down, shape.hidden, shape.ffn);
    for (uint32_t i = 0; i < kDecodeBricksParts; ++i) {
        const DecodeBricksPart& part = shape.qkv[i];
        constants.qkv_formats[i] = number_of(part.format);
        constants.qkv_rows[i] = part.n;
        if (part.n > 0) bytes += bytes_of(part.format, part.n, shape.hidden);
    }
    const Kernel* k = kernel(name, constants);
    if (k == nullptr) return;
    params.max_polls = kGridBarrierPollsMax;
    const uint64_t elements = shape.hidden * (uint64_t{shape.q} + 3 * uint64_t{shape.ffn} + shape.qkv_rows());
    recorder.dispatch(*k, params, program.workgroups, 1, 1, {name, bytes, elements * 2 * shape.rows});
}

}  // namespace lorad::gpu
