#ifndef LORAD_GPU_KERNELS_SAMPLE_CHOICE_PARAMS_H
#define LORAD_GPU_KERNELS_SAMPLE_CHOICE_PARAMS_H

#include "gpu/kernels/interop.h"
#include "gpu/kernels/sampling/choice_rule.h"

INTEROP_BEGIN

// The parameters of sample_draw, sample_changes and sample_logprobs.
struct SampleChoiceParams {
    uint64_t step;        // StepHeader, StepRow[]
    uint64_t logit_rows;  // LogitRow[]
    uint64_t rules;       // ChoiceRule[], by output
    uint64_t logits;      // [i][logits_stride] f32
    uint64_t sampled;     // i32[]
    uint64_t results;     // SampleResult[], as sample_argmax has left them
    uint64_t logprobs;    // ChoiceLogprobs[], by output
    // [mask][ceil(vocab / 32)] u32, bit id % 32 of word id / 32: the token may come; 0 where no rule has one
    uint64_t masks;
    uint32_t vocab;
    uint32_t logits_stride;
};
INTEROP_SIZE(SampleChoiceParams, 72);

INTEROP_END

#endif
