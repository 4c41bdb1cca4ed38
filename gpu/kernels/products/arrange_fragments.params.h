#ifndef LORAD_GPU_KERNELS_ARRANGE_FRAGMENTS_PARAMS_H
#define LORAD_GPU_KERNELS_ARRANGE_FRAGMENTS_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct ArrangeFragmentsParams {
    uint64_t n_rows;     // address of the u32 row count
    uint64_t rows;       // [t][stride] of a 16-bit type; rows up to the next multiple of 16 are read
    uint64_t fragments;  // the same in fragments (activation_fragments.h)
    uint32_t stride;     // elements, a multiple of 64
    uint32_t pad;
};
INTEROP_SIZE(ArrangeFragmentsParams, 32);

INTEROP_END

#endif
