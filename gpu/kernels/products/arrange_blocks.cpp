#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/products/activation_blocks.h"

namespace lorad::gpu {

void ProductKernels::arrange_blocks(Recorder& recorder, const ArrangeBlocksParams& params, uint32_t rows,
                                    uint32_t block_order) {
    CHECK(params.stride % kWeightAlign == 0 && (block_order == kBlocksByColumns || block_order == kBlocksByRows));
    constexpr uint32_t kLanes = 32;  // of a block, whatever the device's subgroups
    const uint32_t size = threads(256, kLanes);
    struct Constants {
        uint32_t threads, block_order;
    };
    const Kernel* k = kernel("arrange_blocks", Constants{.threads = size, .block_order = block_order});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, ceil_div(params.stride / kBlockColumns * kLanes, size), ceil_div(rows, kBlockRows), 1,
                      {"arrange_blocks", uint64_t{rows} * params.stride * 4, 0});
}

}  // namespace lorad::gpu
