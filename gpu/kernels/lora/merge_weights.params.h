#ifndef LORAD_GPU_KERNELS_MERGE_WEIGHTS_PARAMS_H
#define LORAD_GPU_KERNELS_MERGE_WEIGHTS_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

INTEROP_CONST kMergeParts = 8;  // adapters in one merge

// One adapter's change of one module:  factor * ((gain - 1) W + gain * scale * B A),  factor * bias.
struct MergePart {
    uint64_t a;     // [rank][stride of the weights], padding zero
    uint64_t b;     // [n_changed][rank rounded up to 8], padding zero
    uint64_t gain;  // f32 [n_changed], or 0: all 1
    uint64_t bias;  // f32 [n_changed], or 0: none
    uint32_t rank;  // 0: no A and B
    uint32_t type;  // of a and b: 0 f32, 1 f16, 2 bf16
    float scale;    // alpha / rank
    float factor;   // the mix's
};
INTEROP_SIZE(MergePart, 48);

// A range of rows of a weight matrix, or of elements of a bias vector.
struct MergeWeightsParams {
    uint64_t from;     // [n_rows][stride] of the weight type, or a packed part; of biases f32 [n_rows] or 0: zeros
    uint64_t to;       // [n_rows][stride] of the type of the model's matrices, or f32 [n_rows]; other memory
    uint64_t parts;    // MergePart[n_parts]
    uint32_t n_parts;  // at most kMergeParts
    uint32_t n_rows;
    uint32_t n_changed;  // the parts change this many; rows behind them (padding) are copied
    uint32_t stride;     // elements, a multiple of 64; of biases unused
    uint32_t first_row;  // of a packed part, which has rows up to n_changed behind it
    uint32_t pad;
};
INTEROP_SIZE(MergeWeightsParams, 48);

// gain[n] = gain[n] / || from[n] + scale (B A)[n] ||
struct WeightNormParams {
    uint64_t from;  // [n][stride] of the weight type, or a packed part
    uint64_t a;     // [rank][stride]
    uint64_t b;     // [n][rank rounded up to 8]
    uint64_t gain;  // f32 [n]: magnitudes on entry
    uint32_t rank;
    uint32_t type;
    float scale;
    uint32_t n;
    uint32_t stride;
    uint32_t first_row;  // of a packed part
};
INTEROP_SIZE(WeightNormParams, 56);

INTEROP_END

#endif
