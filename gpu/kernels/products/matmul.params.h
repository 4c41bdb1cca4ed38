#ifndef LORAD_GPU_KERNELS_MATMUL_PARAMS_H
#define LORAD_GPU_KERNELS_MATMUL_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

// The same for every matmul variant.
struct MatmulParams {
    uint64_t n_rows;  // address of the u32 row count
    uint64_t w;       // [n_padded][w_stride] of the weight type, padding zero
    // [t][x_stride] of the activation type, in fragments if the plan says so; x_stride == w_stride, elements k.. are
    // zero
    uint64_t x;
    // [split][t][y_stride] f32; of a gated product: [t][y_stride] of the activation type, n columns of gate and as many
    // of up, or 0
    uint64_t y;
    uint64_t y_fragments;  // of a gated product: the same in fragments (activation_fragments.h), or 0
    uint32_t n;            // columns of y that are wanted; up to n_padded may be written
    uint32_t k;
    uint32_t w_stride;      // elements, a multiple of 64
    uint32_t x_stride;      // elements
    uint32_t y_stride;      // elements, n_padded
    uint32_t split_stride;  // elements between the results of two splits
    uint32_t k_per_split;   // elements, a multiple of 64; the last split may be shorter
    uint32_t pad;
};
INTEROP_SIZE(MatmulParams, 72);

// matmul_coopmat with the adapters of the rows in its sums. Each row has at most one, as it is (LoraLevel::kPlain).
struct MatmulLoraParams {
    MatmulParams product;
    uint64_t step;        // StepHeader, StepRow[]
    uint64_t lora_layer;  // LoraModule[kLoraModules] of this layer and slot 0
    uint64_t low;         // the group's shrink result, [t][n_modules][kMaxRank] f32
    uint32_t lora_slot_stride;
    uint32_t first_module;
    uint32_t n_modules;      // of the group
    uint32_t module_end[3];  // columns of y where the group's modules end, in order
};
INTEROP_SIZE(MatmulLoraParams, 120);

// matmul_warpgroup with the adapters of the rows as more k: StackedGroup. Each row has at most one, as it is.
struct MatmulStackedParams {
    MatmulParams product;
    uint64_t windows;  // StackedWindow[tiles of kStackedTileRows]
    // [n_padded][columns] of the weights' type, columns: kStackedModuleColumns for each module of the group
    uint64_t b;
    uint64_t low;  // [t][columns] of the weights' type, in the product's fragments
};
INTEROP_SIZE(MatmulStackedParams, 96);

// matmul_warpgroup of the output layer where nobody wants the logits: params.y is not written.
struct MatmulArgmaxParams {
    MatmulParams product;
    uint64_t partials;  // SampleArgmaxParams::partials, [t][n_parts], a part for each tile of columns
    uint32_t n_parts;
    uint32_t pad;
};
INTEROP_SIZE(MatmulArgmaxParams, 88);

// matmul_coopmat behind a norm that is deferred, of up to kDeferredRows rows.
struct MatmulDeferredParams {
    MatmulParams product;
    uint64_t norms;   // deferred_norm.h
    uint32_t hidden;  // elements of a row that the norm is of
    float eps;
};
INTEROP_SIZE(MatmulDeferredParams, 88);

INTEROP_END

#endif
