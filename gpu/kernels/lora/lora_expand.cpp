#include <algorithm>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {
namespace {

// Measured with rank 64 and with one of 128 beside ranks of 16 (docs/PERFORMANCE.md).
constexpr uint32_t kExpandThreads = 256;
constexpr uint32_t kExpandsPerUnit = 4;  // that a multiprocessor is expected to run side by side
constexpr uint32_t kExpandPieces = 4;    // of work for each of them, about
constexpr uint32_t kLanesMax = 16;       // that share an output's ranks

}  // namespace

bool LoraPlanner::expands_apart(uint32_t rank_max, uint32_t rows) const {
    constexpr uint32_t kRankMin = 33, kRowsMax = 128;
    return rank_max >= kRankMin && rows <= kRowsMax && !options().batch_invariant &&
           capabilities().subgroup_size >= kExpandLanesMin;
}

void LoraKernels::lora_expand(Recorder& recorder, const LoraExpandParams& params) {
    const DeviceCapabilities& caps = capabilities();
    const uint32_t size = std::max(threads(kExpandThreads, 32), caps.subgroup_size);
    struct Constants {
        uint32_t threads, pieces, lanes_max;
    };
    const Kernel* k = kernel(
        "lora_expand",
        Constants{.threads = size, .pieces = kExpandPieces, .lanes_max = std::min(kLanesMax, caps.subgroup_size)},
        caps.subgroup_size);
    if (k == nullptr) return;
    recorder.dispatch(*k, params, kExpandsPerUnit * multiprocessors(caps), 1, 1, {"lora_expand", 0, 0});
}

}  // namespace lorad::gpu
