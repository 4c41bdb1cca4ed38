#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/products/activation_fragments.h"

namespace lorad::gpu {

void ProductKernels::arrange_fragments(Recorder& recorder, const ArrangeFragmentsParams& params, uint32_t rows,
                                       uint32_t fragment_order) {
    CHECK(params.stride % kWeightAlign == 0 && may_have_order(params.stride, fragment_order) &&
          (fragment_order == kFragmentsByColumns || fragment_order == kFragmentsByRows ||
           fragment_order == kMatrixFragments));
    constexpr uint32_t kLanes = 32;  // of a fragment, whatever the device's subgroups
    const uint32_t size = threads(256, kLanes);
    struct Constants {
        uint32_t threads, fragment_order;
    };
    const Kernel* k = kernel("arrange_fragments", Constants{.threads = size, .fragment_order = fragment_order});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, ceil_div(params.stride / kFragmentColumns * kLanes, size),
                      ceil_div(rows, kFragmentRows), 1, {"arrange_fragments", uint64_t{rows} * params.stride * 4, 0});
}

}  // namespace lorad::gpu
