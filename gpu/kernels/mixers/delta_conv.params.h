#ifndef LORAD_GPU_KERNELS_DELTA_CONV_PARAMS_H
#define LORAD_GPU_KERNELS_DELTA_CONV_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

// With K = key heads * key size, U = value heads * value size.
struct DeltaConvParams {
    uint64_t step;  // StepHeader, StepRow[]
    uint64_t runs;  // StateRun[]
    // [t][m_stride] f32: q K, k K, v U, z U, beta's input per value head, the decay's per value head; of Mamba 2 z U, x
    // U, B K, C K, the time step's input per value head
    uint64_t m;
    uint64_t weights;  // [2K + U][taps] f32, in the order of m
    uint64_t bias;     // [2K + U] f32, likewise, or 0
    uint64_t a_log;    // [value heads] f32
    uint64_t dt_bias;  // [value heads] f32
    // the layer's states of convolutions: slot s begins s * slot_stride floats further, [taps - 1][2K + U], in the
    // order of m
    uint64_t state;
    uint64_t to;  // [t][to_stride] f32: q K, k K, v U, g per value head, beta per value head
    uint32_t m_stride;
    uint32_t to_stride;
    uint32_t slot_stride;
    float dt_min;  // of Mamba 2: time steps are at least,
    float dt_max;  // and at most that; may be infinity
    uint32_t pad;
};
INTEROP_SIZE(DeltaConvParams, 96);

INTEROP_END

#endif
