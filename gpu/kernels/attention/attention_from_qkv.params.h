#ifndef LORAD_GPU_KERNELS_ATTENTION_FROM_QKV_PARAMS_H
#define LORAD_GPU_KERNELS_ATTENTION_FROM_QKV_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

// Fields as in AttentionParams and QkvPostParams.
struct AttentionFromQkvParams {
    uint64_t step;
    uint64_t block_tables;
    uint64_t sums;  // QkvPostParams.y: [split][t][sums_stride] f32
    uint64_t bias;  // or 0
    uint64_t rope;
    uint64_t q_gamma;  // or 0
    uint64_t k_gamma;  // or 0
    uint64_t kv;       // read, and written at the rows' kv_slots
    uint64_t y;        // in rows, or in blocks
    uint64_t partials;
    uint32_t sums_stride;
    uint32_t split_stride;  // of the sums
    uint32_t y_stride;
    uint32_t window;
    float scale;
    float softcap;
    float eps;
    uint32_t never;  // 0, which the compiler does not know
};
INTEROP_SIZE(AttentionFromQkvParams, 112);

INTEROP_END

#endif
