#include <algorithm>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {

void LoraKernels::embed_extras(Recorder& recorder, const EmbedExtrasParams& params, WeightKind table, uint32_t rows) {
    uint32_t size = threads(128, 32);
    struct Constants {
        uint32_t threads, weights;
    };
    const Kernel* k = kernel("embed_extras", Constants{.threads = size, .weights = table.constant()});
    if (k == nullptr) return;
    DispatchInfo info{
        "embed_extras",
        uint64_t{rows} * (bytes_of(table.format, kBrickRows, params.hidden) / kBrickRows + params.hidden * 4), 0};
    recorder.dispatch(*k, params, ceil_div(ceil_div(params.hidden, 4), size), rows, 1, info);
}

void LoraKernels::head_extras(Recorder& recorder, const HeadExtrasParams& params, ScalarType act_type,
                              uint32_t logit_rows) {
    CHECK(params.logits_stride % 4 == 0 && params.x_stride % kWeightAlign == 0);
    enum Mode : uint32_t { kTable, kTokens, kShrink };
    constexpr uint32_t kGroup = 4;
    uint32_t size = threads(128, 32);
    struct Constants {
        uint32_t threads, act_type, mode;
    };
    const auto of_mode = [&](Mode mode) {
        return kernel("head_rows",
                      Constants{.threads = size, .act_type = static_cast<uint32_t>(act_type), .mode = mode});
    };
    const Kernel* table = of_mode(kTable);
    const Kernel* tokens = of_mode(kTokens);
    const Kernel* shrink = of_mode(kShrink);
    const Kernel* expand = kernel("head_expand", WorkgroupConstants{.threads = size});
    if (table == nullptr || tokens == nullptr || shrink == nullptr || expand == nullptr) return;
    // Subgroups go on in strides, so these only have to be enough to fill the device.
    uint32_t groups = ceil_div(logit_rows, kGroup);
    recorder.dispatch(*table, params, std::min(ceil_div(params.vocab, 16), 1024u), groups, 1, {"head_table", 0, 0});
    recorder.dispatch(*tokens, params, 8, groups, 1, {"head_tokens", 0, 0});
    recorder.dispatch(*shrink, params, 4, logit_rows * kStepUsesMax, 1, {"head_shrink", 0, 0});
    recorder.barrier();
    recorder.dispatch(*expand, params, ceil_div(ceil_div(params.vocab, 4), size), logit_rows, 1, {"head_expand", 0, 0});
}

}  // namespace lorad::gpu
