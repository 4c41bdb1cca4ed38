#ifndef LORAD_GPU_KERNELS_EXPERT_ACT_PARAMS_H
#define LORAD_GPU_KERNELS_EXPERT_ACT_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct ExpertActParams {
    uint64_t step;    // StepHeader
    uint64_t chosen;  // ExpertRouteParams; read with bias only
    uint64_t y;       // [pair][y_stride] f32: gate 0..ffn-1, up ffn..2*ffn-1, or interleaved
    uint64_t bias;    // [experts][2 * ffn] f32 in the same order, or 0
    uint64_t act;     // [pair][act_stride] of the activation type; ffn..act_stride-1 are written with zeros
    uint32_t y_stride;
    uint32_t act_stride;
    uint32_t ffn;
    uint32_t top;
    float alpha, limit;  // of kExpertClamped
    uint32_t pad[2];
};
INTEROP_SIZE(ExpertActParams, 72);

INTEROP_END

#endif
