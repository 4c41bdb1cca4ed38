// The kernels from logits to tokens: the greatest of a row, changes, draws by rule, log-probabilities.
#pragma once

#include <cstdint>

#include "gpu/command.h"
#include "gpu/kernels/kernel_cache.h"
#include "gpu/kernels/kernel_facts.h"
#include "gpu/kernels/sampling/sample_argmax.params.h"
#include "gpu/kernels/sampling/sample_choice.params.h"
#include "gpu/kernels/sampling/scale_logits.params.h"

namespace lorad::gpu {

// Each method records one dispatch unless it says otherwise. Several threads may record at once, each into its own
// Recorder.
class SamplingKernels : public Planner, private KernelRecorder {
  public:
    SamplingKernels(const KernelFacts& facts, KernelCache& cache) : Planner(facts), KernelRecorder(cache) {}

    // logits = softcap tanh(scale * logits / softcap), or scale * logits, in place. Moves 8 V bytes per row.
    void scale_logits(Recorder& recorder, const ScaleLogitsParams& params, uint32_t logit_rows);
    // Per logit row: argmax, max, log-sum-exp; copies the row to the host where asked. logit_rows: capacity.
    // Records two dispatches and the barrier between them.
    void sample_argmax(Recorder& recorder, SampleArgmaxParams params, uint32_t logit_rows);
    void sample_join(Recorder& recorder, SampleArgmaxParams params, uint32_t n_parts, uint32_t logit_rows);
    // For steps whose outputs have rules (choice_rule.h). Where some have changes: sample_last_tokens before anything
    // overwrites params.sampled; after sample_argmax sample_changes, sample_draw, and sample_changes once more to undo
    // them; then sample_logprobs where they are wanted; barriers between all of them. params.masks is to be there when
    // sample_draw runs. sample_draw reads a drawn row 4 to 14 times, sample_logprobs a row 7 times.
    void sample_last_tokens(Recorder& recorder, const SampleChoiceParams& params, uint32_t logit_rows);
    void sample_changes(Recorder& recorder, const SampleChoiceParams& params, uint32_t logit_rows, bool undo);
    void sample_logprobs(Recorder& recorder, const SampleChoiceParams& params, uint32_t logit_rows);
    void sample_draw(Recorder& recorder, const SampleChoiceParams& params, uint32_t logit_rows);
    static uint64_t sample_partial_bytes(uint32_t logit_rows);
};

}  // namespace lorad::gpu
