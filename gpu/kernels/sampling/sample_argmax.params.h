#ifndef LORAD_GPU_KERNELS_SAMPLE_ARGMAX_PARAMS_H
#define LORAD_GPU_KERNELS_SAMPLE_ARGMAX_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

INTEROP_CONST kSamplePartsMax = 4096;  // of a row, each what one workgroup says; sizes the partials
INTEROP_CONST kSamplePartBytes = 16;   // of SamplePart

// Summary of some logits of a row; if there are none, top is minus infinity and sum 0.
struct SamplePart {
    uint32_t index;   // of the greatest, the lowest on ties
    float top;        // the greatest
    float sum;        // of exp(logit - top)
    uint32_t finite;  // 1: all are
};
INTEROP_SIZE(SamplePart, kSamplePartBytes);

struct SampleArgmaxParams {
    uint64_t n_logit_rows;  // address of the u32 count
    uint64_t logits;        // [i][logits_stride] f32
    uint64_t logit_rows;    // LogitRow[]
    uint64_t sampled;       // i32[]: device copy of the ids, for the next step's embed
    uint64_t results;       // SampleResult[], host-visible
    uint64_t host_logits;   // [readback][vocab] f32, host-visible; rows whose readback is kNoReadback are not copied
    uint64_t partials;      // SamplePart [i][n_parts]; sample_partial_bytes() of device memory
    uint32_t vocab;
    uint32_t logits_stride;
    uint32_t n_parts;  // set by KernelSet
    uint32_t pad;
};
INTEROP_SIZE(SampleArgmaxParams, 72);

INTEROP_END

#endif
