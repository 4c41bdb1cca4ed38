#ifndef LORAD_GPU_KERNELS_LORA_VECTOR_PARAMS_H
#define LORAD_GPU_KERNELS_LORA_VECTOR_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

// Counts of dispatches: of workgroup i of a grid of n, a power of two, at n + i; those of one grid are always equal.
// Then words of a value of A x and the number of its dispatch.
INTEROP_CONST kLoraVectorGroupsMax = 4096;
INTEROP_CONST kLoraVectorCountBytes = 2 * kLoraVectorGroupsMax * 4;
INTEROP_CONST kLoraVectorWords = 512;
INTEROP_CONST kLoraVectorScratchBytes = kLoraVectorCountBytes + kLoraVectorWords * 8;

struct LoraVectorParams {
    uint64_t x;  // [k] of the activation type
    uint64_t w;  // [n][k] of the weight type, or 0: the adapter's part alone
    uint64_t a;  // [rank][k]
    uint64_t b;  // [n][rank rounded up to 8], columns rank.. zero
    uint64_t y;  // [n rounded up to 2] of the activation type
    // scratch of kLoraVectorScratchBytes, all zero before its first use; one dispatch at a time, or what another one
    // has told counts as told now
    uint64_t low;
    uint32_t n;
    uint32_t k;     // a multiple of 8
    uint32_t rank;  // 1 to kMaxRank
    float scale;
};
INTEROP_SIZE(LoraVectorParams, 64);

INTEROP_END

#endif
