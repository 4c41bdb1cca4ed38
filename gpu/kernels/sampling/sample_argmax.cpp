#include <algorithm>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kChunksPerThread = 2;  // of 4 logits
constexpr uint32_t kMaxVocab = 1 << 20;
struct ArgmaxConstants {
    uint32_t threads, stage, per_thread;
};
static_assert(kMaxVocab / (32 * 4 * kChunksPerThread) <= kSamplePartsMax);

}  // namespace

uint64_t SamplingKernels::sample_partial_bytes(uint32_t logit_rows) {
    return uint64_t{logit_rows} * kSamplePartsMax * kSamplePartBytes;
}

void SamplingKernels::sample_argmax(Recorder& recorder, SampleArgmaxParams params, uint32_t logit_rows) {
    CHECK(params.vocab <= kMaxVocab);
    uint32_t size = threads(256, 32);
    params.n_parts = ceil_div(params.vocab, size * 4 * kChunksPerThread);
    const Kernel* scan =
        kernel("sample_argmax", ArgmaxConstants{.threads = size, .stage = 1, .per_thread = kChunksPerThread});
    if (scan == nullptr) return;
    const uint32_t at_once = kThreadsAtOnce * multiprocessors(capabilities()) / size;
    const uint32_t of_a_row =
        logit_rows <= kSteadyRows ? std::clamp(at_once / std::max(logit_rows, 1u), 1u, params.n_parts) : params.n_parts;
    recorder.dispatch(*scan, params, of_a_row, logit_rows, 1,
                      {"sample_argmax", uint64_t{logit_rows} * params.vocab * 4, 0});
    recorder.barrier();
    sample_join(recorder, params, params.n_parts, logit_rows);
}

void SamplingKernels::sample_join(Recorder& recorder, SampleArgmaxParams params, uint32_t n_parts,
                                  uint32_t logit_rows) {
    params.n_parts = n_parts;
    const Kernel* join = kernel("sample_argmax", ArgmaxConstants{.threads = threads(threads_for(n_parts, 128, 512), 32),
                                                                 .stage = 2,
                                                                 .per_thread = kChunksPerThread});
    if (join == nullptr) return;
    recorder.dispatch(*join, params, 1, logit_rows, 1,
                      {"sample_join", uint64_t{logit_rows} * n_parts * kSamplePartBytes, 0});
}

}  // namespace lorad::gpu
