// Embeddings per layer (Gemma 4): n numbers of a row for each of L layers.
#ifndef LORAD_GPU_KERNELS_PLE_PARAMS_H
#define LORAD_GPU_KERNELS_PLE_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct PleRowsParams {
    uint64_t step;     // StepHeader, StepRow[]
    uint64_t y;        // [t][y_stride] f32: the finished product of the embedding's row, L * n columns
    uint64_t gamma;    // [n] f32
    uint64_t table;    // [vocab][table_stride] of the weight type
    uint64_t sampled;  // i32[], as in EmbedParams
    uint64_t ple;      // [t][ple_stride] f32
    uint32_t n;
    uint32_t y_stride;
    uint32_t table_stride;
    uint32_t ple_stride;
    uint32_t vocab;  // ids outside 0..vocab-1 read row 0
    float y_scale;   // on y before its norm
    float eps;
    uint32_t pad;
};
INTEROP_SIZE(PleRowsParams, 80);

struct PleGateParams {
    uint64_t step;  // StepHeader, StepRow[]
    uint64_t y;     // [split][t][y_stride] f32
    uint64_t ple;   // [t][ple_stride] f32, from the layer's first number on
    uint64_t act;   // [t][act_stride] of the activation type; n..act_stride-1 are written with zeros
    uint32_t n;
    uint32_t y_stride;
    uint32_t split_stride;
    uint32_t ple_stride;
    uint32_t act_stride;
    uint32_t pad;
};
INTEROP_SIZE(PleGateParams, 56);

INTEROP_END

#endif
