#ifndef LORAD_GPU_KERNELS_EMBED_PARAMS_H
#define LORAD_GPU_KERNELS_EMBED_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct EmbedParams {
    uint64_t step;     // StepHeader, StepRow[]
    uint64_t table;    // [vocab][table_stride] of the weight type
    uint64_t sampled;  // i32[]: the previous step's sampled ids; read only for token < 0
    uint64_t x;        // [t][x_stride] f32
    uint32_t hidden;
    uint32_t table_stride;  // elements
    uint32_t x_stride;      // elements
    uint32_t vocab;         // ids outside 0..vocab-1 read row 0
    float scale;            // 1, or what the architecture multiplies embeddings with
    uint32_t pad;
};
INTEROP_SIZE(EmbedParams, 56);

INTEROP_END

#endif
