#ifndef LORAD_GPU_KERNELS_GATHER_ROWS_PARAMS_H
#define LORAD_GPU_KERNELS_GATHER_ROWS_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct GatherRowsParams {
    uint64_t n_rows;      // address of the u32 row count of the result
    uint64_t logit_rows;  // LogitRow[]
    uint64_t from;        // [.][n_words] of 16 bytes
    uint64_t to;          // [t][n_words], no part of `from`
    uint32_t n_words;     // of a row
    uint32_t pad;
};
INTEROP_SIZE(GatherRowsParams, 40);

INTEROP_END

#endif
