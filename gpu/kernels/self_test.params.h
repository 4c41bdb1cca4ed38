#ifndef LORAD_GPU_KERNELS_SELF_TEST_PARAMS_H
#define LORAD_GPU_KERNELS_SELF_TEST_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

// Specialization constants: 0 invocations per workgroup, 1 mode.
INTEROP_CONST kSelfTestScale = 0;  // to[i] = from[i] * factor + summand for i < n, modulo 2^32
INTEROP_CONST kSelfTestCount = 1;  // to[0] += invocations

struct SelfTestParams {
    uint64_t from;  // u32[n]
    uint64_t to;    // u32[n]
    uint32_t n;
    uint32_t factor;
    uint32_t summand;
    uint32_t pad;
};
INTEROP_SIZE(SelfTestParams, 32);

INTEROP_END

#endif
