#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {
namespace {

struct ChangesConstants {
    uint32_t threads, stage;
};

}  // namespace

void SamplingKernels::sample_last_tokens(Recorder& recorder, const SampleChoiceParams& params, uint32_t logit_rows) {
    uint32_t size = threads(64, 32);
    const Kernel* k = kernel("sample_changes", ChangesConstants{.threads = size, .stage = 0});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, ceil_div(logit_rows, size), 1, 1, {"sample_last_tokens", 0, 0});
}

void SamplingKernels::sample_changes(Recorder& recorder, const SampleChoiceParams& params, uint32_t logit_rows,
                                     bool undo) {
    const Kernel* k = kernel("sample_changes", ChangesConstants{.threads = threads(128, 32), .stage = undo ? 2u : 1u});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, 1, logit_rows, 1, {undo ? "sample_changes_undo" : "sample_changes", 0, 0});
}

void SamplingKernels::sample_logprobs(Recorder& recorder, const SampleChoiceParams& params, uint32_t logit_rows) {
    const Kernel* k = kernel("sample_logprobs", WorkgroupConstants{.threads = threads(1024, 64)});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, 1, logit_rows, 1, {"sample_logprobs", uint64_t{logit_rows} * params.vocab * 4, 0});
}

void SamplingKernels::sample_draw(Recorder& recorder, const SampleChoiceParams& params, uint32_t logit_rows) {
    struct Constants {
        uint32_t threads, has_masks;
    };
    const Kernel* k =
        kernel("sample_draw", Constants{.threads = threads(1024, 64), .has_masks = params.masks != 0 ? 1u : 0u});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, 1, logit_rows, 1, {"sample_draw", uint64_t{logit_rows} * params.vocab * 4, 0});
}

}  // namespace lorad::gpu
