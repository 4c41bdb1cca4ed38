#ifndef LORAD_GPU_KERNELS_RMS_NORM_PARAMS_H
#define LORAD_GPU_KERNELS_RMS_NORM_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct RmsNormParams {
    uint64_t n_rows;       // address of the u32 row count of the result (n_rows or n_logit_rows of the header)
    uint64_t x;            // [.][x_stride] f32
    uint64_t gamma;        // [hidden] f32, or 0: y is x
    uint64_t y;            // [t][y_stride] of the activation type
    uint64_t y_fragments;  // the same in fragments (activation_fragments.h), or 0
    uint64_t logit_rows;   // 0: row t of y comes from row t of x; else LogitRow[]: from row logit_rows[t].row
    uint64_t step;         // read with slot_norms only
    uint64_t slot_norms;   // address [slot] of an adapter's own gamma, or 0: all rows have the base's
    uint64_t norms;        // deferred_norm.h, where the inverses are written, of at most kDeferredRows rows, or 0
    uint32_t hidden;
    uint32_t x_stride;
    uint32_t y_stride;  // elements; hidden..y_stride-1 are written with zeros
    float eps;
};
INTEROP_SIZE(RmsNormParams, 88);

INTEROP_END

#endif
