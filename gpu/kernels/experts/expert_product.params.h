#ifndef LORAD_GPU_KERNELS_EXPERT_PRODUCT_PARAMS_H
#define LORAD_GPU_KERNELS_EXPERT_PRODUCT_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct ExpertProductParams {
    uint64_t sorted;  // ExpertGroupParams
    uint64_t n_tiles;
    uint64_t tiles;
    // [experts * n][w_stride] of the weight type, the matrices one behind the other; packed: the bricks of such rows
    uint64_t w;
    uint64_t x;  // [x row][w_stride] of the activation type, elements k.. are zero
    // [pair][y_stride] f32; gated: of the activation type, what n / 2 gates and as many ups become; elements behind
    // them are written with zeros
    uint64_t y;
    uint64_t bias;  // of gated products: as in ExpertActParams, or 0
    uint32_t n;
    uint32_t w_stride;
    uint32_t y_stride;
    uint32_t pairs_per_row;  // pair i reads x row i / pairs_per_row
    float alpha, limit;      // as in ExpertActParams
};
INTEROP_SIZE(ExpertProductParams, 80);

INTEROP_END

#endif
