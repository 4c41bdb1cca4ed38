#ifndef LORAD_GPU_KERNELS_SCALE_LOGITS_PARAMS_H
#define LORAD_GPU_KERNELS_SCALE_LOGITS_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct ScaleLogitsParams {
    uint64_t n_logit_rows;  // address of the u32
    uint64_t logits;        // [row][logits_stride] f32, in place
    uint32_t vocab;
    uint32_t logits_stride;
    float scale;
    float softcap;  // 0: none
};
INTEROP_SIZE(ScaleLogitsParams, 32);

INTEROP_END

#endif
