#ifndef LORAD_GPU_KERNELS_TRAIN_PRODUCT_PARAMS_H
#define LORAD_GPU_KERNELS_TRAIN_PRODUCT_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

// One of several products of a dispatch, which share strides and types.
struct TrainProductItem {
    uint64_t a, b, c;  // elements from the beginnings in TrainProductParams
    uint32_t m, n, k;
    uint32_t first_query;  // TrainProductParams::causal
};
INTEROP_SIZE(TrainProductItem, 40);

// The parts of an item's products that may be left out. Query q of its scores, which is row q - first_query, sees the
// keys up to q. Tiled kernels leave out what fills their tiles; of rows of scores they read no more than the keys in
// front of (q / kCausalTile + 2) * kCausalTile.
INTEROP_CONST kCausalNone = 0;
INTEROP_CONST kCausalScores = 1;   // c: scores, which others need not have
INTEROP_CONST kCausalQueries = 2;  // a: scores [query][key]
INTEROP_CONST kCausalKeys = 3;     // a: scores, transposed
INTEROP_CONST kCausalTile = 128;

// c[i][j] = alpha * sum over l of a[i][l] * b[l][j], or that added to c; m x k by k x n. Strides in elements; of the
// two of a, and of b, one is 1.
struct TrainProductParams {
    uint64_t a, b;   // of any type
    uint64_t c;      // f32
    uint64_t items;  // TrainProductItem[grid z], or 0: one product, of the sizes below
    uint32_t m, n, k;
    uint32_t a_i, a_l;
    uint32_t b_l, b_j;
    uint32_t c_i, c_j;
    float alpha;
    // without items: each grid z has so many l, and its own c, c_split elements further; 0: z is 1
    uint32_t k_per_split;
    uint32_t c_split;
    uint32_t causal;  // with items: kCausal...
    uint32_t pad;
};
INTEROP_SIZE(TrainProductParams, 88);

// c[i][j] = alpha * sum over parts s of parts[s][i][j], or that added to c.
struct TrainJoinParams {
    uint64_t parts;  // f32 [n_parts][part_rows][stride]
    uint64_t c;
    uint32_t m, n;
    uint32_t stride;
    uint32_t n_parts;
    uint32_t c_i, c_j;
    float alpha;
    uint32_t part_rows;
};
INTEROP_SIZE(TrainJoinParams, 48);

INTEROP_END

#endif
