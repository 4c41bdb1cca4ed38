#ifndef LORAD_GPU_KERNELS_UNPACK_WEIGHTS_PARAMS_H
#define LORAD_GPU_KERNELS_UNPACK_WEIGHTS_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

// Rows of a packed part as a plain matrix.
struct UnpackWeightsParams {
    uint64_t from;       // the part's first brick
    uint64_t to;         // [n_rows][stride] of the type
    uint32_t first_row;  // of the part
    uint32_t n;          // rows of the part from there on; those of `to` behind them become zero
    uint32_t n_rows;
    uint32_t stride;  // elements, a multiple of 64
};
INTEROP_SIZE(UnpackWeightsParams, 32);

INTEROP_END

#endif
