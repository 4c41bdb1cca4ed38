#include <algorithm>
#include <cstddef>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kMatrixRows = 128;  // recordings of fewer rows have short segments
// Behind a product: small workgroups, for the room that its own leave. On an H200 these have 56 registers; with three
// chunks ahead it would be 64, with which none fits beside three workgroups of a product with tiles of 64x96.
constexpr uint32_t kShrinkThreads = 128, kAhead = 2;
static_assert(kShrinkRanks % kShrinkPieceRanks == 0);
// First: workgroups of all threads that one row of k keeps busy.
constexpr uint32_t kShrinkThreadsFirst = 512, kAheadFirst = 1;

// Subgroups of lora_shrink_matrix that fit the shared memory: tiles of x and A, 9 words of 16 bytes for each of 32
// rows, and sums.
uint32_t matrix_subgroups(const DeviceCapabilities& caps) {
    constexpr uint32_t kSharedBytes = 32 * 9 * 16 + 16 * 16 * 4, kAllShare = 4;
    for (const uint32_t subgroups : {8u, 4u, 2u, 1u}) {
        if (subgroups * kSharedBytes + kAllShare <= caps.shared_memory_bytes &&
            subgroups * caps.subgroup_size <= threads_max(caps)) {
            return subgroups;
        }
    }
    return 0;
}

}  // namespace

bool LoraPlanner::shrinks_by_matrix(ScalarType act_type, uint32_t rows) const {
    return options().lora_on_matrices && !options().batch_invariant && rows >= kMatrixRows &&
           ladder().has(RungId::kShrink, act_type);
}

void LoraKernels::lora_shrink(Recorder& recorder, LoraShrinkParams params, ScalarType act_type, uint32_t rows,
                              ShrinkPlace place, const Buffer& step_state, uint64_t dispatch_offset) {
    CHECK(dispatch_offset % 4 == 0 && dispatch_offset + sizeof(ShrinkDispatch) <= step_state.size());
    const uint64_t grid_offset = dispatch_offset + offsetof(ShrinkDispatch, grid),
                   stride_offset = dispatch_offset + offsetof(ShrinkDispatch, stride_grid);
    params.grid = step_state.address() + grid_offset;
    const DeviceCapabilities& caps = capabilities();
    if (shrinks_by_matrix(act_type, rows)) {
        const char* name = act_type == ScalarType::kBf16 ? "lora_shrink_bf16" : "lora_shrink_f16";
        const uint32_t size = matrix_subgroups(caps) * caps.subgroup_size;
        struct Constants {
            uint32_t threads, subgroup, x_stride, stacked;
        };
        const Kernel* k = kernel(name,
                                 Constants{.threads = size,
                                           .subgroup = caps.subgroup_size,
                                           .x_stride = params.x_stride,
                                           .stacked = params.stacked != 0 ? 1u : 0u},
                                 caps.subgroup_size);
        if (k == nullptr) return;
        recorder.dispatch_indirect(*k, params, step_state, grid_offset, {name, uint64_t{rows} * params.k * 2, 0});
        return;
    }
    CHECK(params.stacked == 0);
    const bool first = place == ShrinkPlace::kFirst && !options().batch_invariant;
    const uint32_t size =
        std::max(threads(threads_for(ceil_div(params.k, 8), 64, first ? kShrinkThreadsFirst : kShrinkThreads), 32),
                 caps.subgroup_size);
    struct Constants {
        uint32_t threads, act_type, ranks, ahead, grid_stride;
    };
    const Kernel* k = kernel("lora_shrink",
                             Constants{.threads = size,
                                       .act_type = static_cast<uint32_t>(act_type),
                                       .ranks = first ? kShrinkRanks : kShrinkPieceRanks,
                                       .ahead = first ? kAheadFirst : kAhead,
                                       .grid_stride = !first},
                             caps.subgroup_size);
    if (k == nullptr) return;
    recorder.dispatch_indirect(*k, params, step_state, first ? grid_offset : stride_offset, {"lora_shrink", 0, 0});
}

}  // namespace lorad::gpu
