#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kDeltaRows = 8;  // as in weight_delta.glsl

}  // namespace

void LoraKernels::merge_weights(Recorder& recorder, const MergeWeightsParams& params, WeightKind from) {
    CHECK(params.n_parts <= kMergeParts && params.n_changed <= params.n_rows && params.stride % kWeightAlign == 0);
    CHECK(params.from != params.to);
    // 512 columns are a whole part of the usual widths.
    uint32_t size = threads(64, 32);
    struct Constants {
        uint32_t threads, weight_type, from;
    };
    const Kernel* k =
        kernel("merge_weights",
               Constants{.threads = size, .weight_type = static_cast<uint32_t>(from.type), .from = from.constant()});
    if (k == nullptr) return;
    uint64_t bytes = uint64_t{params.n_rows} * params.stride * bytes_of(from.type) +
                     bytes_of(from.format, params.n_rows, params.stride);
    recorder.dispatch(*k, params, ceil_div(params.n_rows, kDeltaRows), ceil_div(params.stride / 8, size), 1,
                      {"merge_weights", bytes, 0});
}

void LoraKernels::merge_bias(Recorder& recorder, const MergeWeightsParams& params) {
    CHECK(params.n_parts <= kMergeParts && params.n_changed <= params.n_rows && params.from != params.to);
    uint32_t size = threads(128, 32);
    const Kernel* k = kernel("merge_bias", WorkgroupConstants{.threads = size});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, ceil_div(params.n_rows, size), 1, 1, {"merge_bias", uint64_t{params.n_rows} * 8, 0});
}

void LoraKernels::weight_norm(Recorder& recorder, const WeightNormParams& params, WeightKind from) {
    CHECK(params.rank <= kMaxRank && params.stride % kWeightAlign == 0 && params.gain != 0);
    uint32_t size = threads(256, 32);
    struct Constants {
        uint32_t threads, weights;
    };
    const Kernel* k = kernel("weight_norm", Constants{.threads = size, .weights = from.constant()});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, ceil_div(params.n, kDeltaRows), 1, 1,
                      {"weight_norm", bytes_of(from.format, params.n, params.stride), 0});
}

}  // namespace lorad::gpu
