#ifndef LORAD_GPU_KERNELS_EXPERT_ROUTE_PARAMS_H
#define LORAD_GPU_KERNELS_EXPERT_ROUTE_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

INTEROP_CONST kExpertsMax = 1024;   // of a layer
INTEROP_CONST kTopExpertsMax = 32;  // of a row
INTEROP_CONST kExpertTileRows = 8;  // pairs of one ExpertTile at most, where products are not on matrices

// The ways from a router's logits to weights.
INTEROP_CONST kSoftmaxThenTop = 0;  // of all experts, then the largest
INTEROP_CONST kTopThenSoftmax = 1;  // the largest, then of these alone
INTEROP_CONST kSigmoidBias = 2;     // sigmoids; the largest of sigmoid + selection bias, which is not in the weight

// A pair is a row and one of its experts: pair t * top + j is the j-th of row t, in the order of what they are chosen
// by, the lower number first among equals.
struct ExpertRouteParams {
    uint64_t step;          // StepHeader
    uint64_t logits;        // [split][t][stride] f32
    uint64_t logit_bias;    // [experts] f32, added to the sum of the splits, or 0
    uint64_t bias;          // [experts] f32, of kSigmoidBias alone, or 0
    uint64_t expert_scale;  // [experts] f32 that weights are multiplied with at last, or 0
    uint64_t chosen;        // u32[t * top + j]: the expert
    uint64_t weights;       // f32[t * top + j]
    uint64_t counts;        // u32[experts], zero before: pairs of each
    // as in ExpertGroupParams; written in recordings of one row, which need no group()
    uint64_t sorted;
    uint64_t n_tiles;
    uint64_t tiles;
    uint32_t stride;
    uint32_t split_stride;  // elements
    float sum_eps;          // added to the sum that weights are divided by
    float scale;            // of all weights
};
INTEROP_SIZE(ExpertRouteParams, 104);

// Neighbours in the sorted order of pairs that have one expert.
struct ExpertTile {
    uint32_t expert;
    uint32_t begin;  // in the sorted pairs
    uint32_t n;      // 1..ExpertPlan::tile_rows
    uint32_t pad;
};
INTEROP_SIZE(ExpertTile, 16);

struct ExpertGroupParams {
    uint64_t step;     // StepHeader
    uint64_t chosen;   // as above
    uint64_t counts;   // as above
    uint64_t sorted;   // u32[pairs]: pairs by expert, those of one in their own order
    uint64_t n_tiles;  // u32
    uint64_t tiles;    // ExpertTile[]
    uint32_t tile_rows;
    uint32_t top;
};
INTEROP_SIZE(ExpertGroupParams, 56);

INTEROP_END

#endif
