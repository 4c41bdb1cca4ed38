#ifndef LORAD_GPU_KERNELS_TRAIN_PRODUCT_PARAMS_H
#define LORAD_GPU_KERNELS_TRAIN_PRODUCT_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

// One of several products of a dispatch, which share strides and types.
struct TrainProductItem {
    uint64_t a, b, c;  // elements from the beginnings in TrainProductParams
    uint32_t m, n, k;
    uint32_t pad;
};
INTEROP_SIZE(TrainProductItem, 40);

// c[i][j] = alpha * sum over l of a[i][l] * b[l][j], or that added to c; m x k by k x n. Strides in elements; of the two of a, and of b, one is 1.
struct TrainProductParams {
    uint64_t a, b;   // of any type
    uint64_t c;      // f32
    uint64_t items;  // TrainProductItem[grid z], or 0: one product, of the sizes below
    uint32_t m, n, k;
    uint32_t a_i, a_l;
    uint32_t b_l, b_j;
    uint32_t c_i, c_j;
    float alpha;
    uint32_t k_per_split;  // without items: each grid z has so many l, and its own c, c_split elements further; 0: z is 1
    uint32_t c_split;
};
INTEROP_SIZE(TrainProductParams, 80);

// c[i][j] = alpha * sum over parts s of parts[s][i][j], or that added to c.
struct TrainJoinParams {
    uint64_t parts;  // f32 [n_parts][m][stride]
    uint64_t c;
    uint32_t m, n;
    uint32_t stride;
    uint32_t n_parts;
    uint32_t c_i, c_j;
    float alpha;
    uint32_t pad;
};
INTEROP_SIZE(TrainJoinParams, 48);

INTEROP_END

#endif
