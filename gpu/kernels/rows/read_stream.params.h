#ifndef LORAD_GPU_KERNELS_READ_STREAM_PARAMS_H
#define LORAD_GPU_KERNELS_READ_STREAM_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct ReadStreamParams {
    uint64_t from;  // [n_words] of 16 bytes
    uint64_t to;    // u32, becomes 1 if one of them is `wanted` four times; else left alone
    uint32_t n_words;
    uint32_t wanted;
};
INTEROP_SIZE(ReadStreamParams, 24);

INTEROP_END

#endif
