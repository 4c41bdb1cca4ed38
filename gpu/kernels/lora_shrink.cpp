#include <algorithm>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kMatrixRows = 128;  // recordings of fewer rows have short segments
// What comes behind a product's workgroups is small, so that it finds room beside them, and no more than runs at once: see KernelSet::kShrinkFirstRowsMax.
constexpr uint32_t kThreads = 128, kRanks = 2, kAhead = 3;
constexpr uint32_t kWorkgroupsOfAMultiprocessor = 4;
constexpr uint32_t kRankExpected = 64;  // of more a workgroup takes several pieces
// What comes before it has all of the device.
constexpr uint32_t kThreadsFirst = 512, kRanksFirst = kShrinkRanks, kAheadFirst = 1;

// Subgroups of lora_shrink_matrix that fit the shared memory: tiles of x and A, 9 words of 16 bytes for each of 32 rows, and sums.
uint32_t matrix_subgroups(const DeviceCapabilities& caps) {
    constexpr uint32_t kSharedBytes = 32 * 9 * 16 + 16 * 16 * 4, kAllShare = 4;
    for (const uint32_t subgroups : {8u, 4u, 2u, 1u}) {
        if (subgroups * kSharedBytes + kAllShare <= caps.shared_memory_bytes &&
            subgroups * caps.subgroup_size <= caps.max_workgroup_invocations) {
            return subgroups;
        }
    }
    return 0;
}

}  // namespace

bool KernelSet::shrinks_by_matrix(ScalarType act_type, uint32_t rows) const {
    return options_.lora_on_matrices && !options_.batch_invariant && rows >= kMatrixRows && ladder_.has_shrink(act_type);
}

void KernelSet::lora_shrink(Recorder& recorder, LoraShrinkParams params, ScalarType act_type, uint32_t rows,
                            const Buffer& step_state, uint64_t grid_offset) {
    const DeviceCapabilities& caps = device_.capabilities();
    if (shrinks_by_matrix(act_type, rows)) {
        const char* name = act_type == ScalarType::kBf16 ? "lora_shrink_bf16" : "lora_shrink_f16";
        const uint32_t size = matrix_subgroups(caps) * caps.subgroup_size;
        const Kernel* k = kernel(name, {size, caps.subgroup_size, params.x_stride}, caps.subgroup_size);
        if (k == nullptr) return;
        recorder.dispatch_indirect(*k, params, step_state, grid_offset, {name, 0, 0});
        return;
    }
    const bool first = rows <= kShrinkFirstRowsMax && !options_.batch_invariant;
    const uint32_t size = threads(threads_for(ceil_div(params.k, 8), 64, first ? kThreadsFirst : kThreads), 32);
    const Kernel* k = kernel("lora_shrink", {size, static_cast<uint32_t>(act_type), first ? kRanksFirst : kRanks, first ? kAheadFirst : kAhead});
    if (k == nullptr) return;
    if (first) {
        recorder.dispatch_indirect(*k, params, step_state, grid_offset, {"lora_shrink", 0, 0});
        return;
    }
    params.grid = step_state.address() + grid_offset;
    const uint32_t pieces = rows * params.n_modules * (kRankExpected / kRanks);
    recorder.dispatch(*k, params, std::min(pieces, kWorkgroupsOfAMultiprocessor * multiprocessors(caps)), 1, 1, {"lora_shrink", 0, 0});
}

}  // namespace lorad::gpu
