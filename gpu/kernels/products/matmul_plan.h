// The plan of a product: the implementation (matmul_variants.h), and the constants of its kernels.
#pragma once

#include <cstdint>

#include "gpu/kernels/formats/weight_format.h"
#include "gpu/kernels/products/activation_fragments.h"
#include "gpu/kernels/products/matmul_variants.h"
#include "gpu/kernels/products/product.h"
#include "gpu/kernels/scalar_type.h"
#include "proto/base/rounding.h"

namespace lorad::gpu {

struct MatmulPlan {
    MatmulVariant variant = MatmulVariant::kMatvec;
    uint32_t n_splits = 1;     // y has that many partial results; the consumer adds them in order
    uint32_t k_per_split = 0;  // elements, a multiple of 64
    uint32_t row_tile = 1;     // rows of x that one workgroup takes
    uint32_t column_tile = 1;  // rows of w, which are columns of y, that one workgroup takes
    uint32_t rows = 0;         // capacity
    // of kCoopmat: so many rows at the front have all of k in split 0, nothing in the others; a multiple of row_tile
    uint32_t whole_rows = 0;
    uint32_t tile = 0;       // which of the variant's own tiles
    uint32_t short_sum = 0;  // of kRegisters: elements of k that f16 adds; 0: f32 alone
    // of kRegisters: not what the table has, but what was faster on this device (tuning/measured_products.h)
    bool is_measured = false;
    bool x_in_fragments = false;             // of kCoopmat, kPackedRows and those by warpgroups
    uint32_t x_order = kFragmentsByColumns;  // of its fragments (activation_fragments.h)
    ScalarType weight_type = ScalarType::kF32;
    ScalarType act_type = ScalarType::kF32;
    uint32_t subgroups = 0;  // of kResidual: of a workgroup, which share k
    uint32_t k_step = 0;     // of kResidual: elements of k that a subgroup takes at once
    // The product's form.
    AdapterForm adapters = AdapterForm::kApart;
    ProductResult result = ProductResult::kSums;
    Activation activation = Activation::kSilu;
    bool norm_is_deferred = false, is_n_major = false;
    bool writes_fragments_alone = false;  // of kGated: MatmulParams::y_fragments, whose reader has to take fragments
    // Of a packed matrix: either the product reads its parts as they are, a dispatch each with that part's format here
    // (a plan comes with the first of Product::formats), or (`unpacks`) a plain copy of weight_type, which
    // unpack_weights() makes in front of it.
    WeightFormat packed = WeightFormat::kF32;  // kF32: w is plain
    bool unpacks = false;

    WeightKind weights() const { return is_packed(packed) ? WeightKind(packed, weight_type) : WeightKind(weight_type); }
    uint32_t splits_of(uint32_t row) const { return row < whole_rows ? 1 : n_splits; }
    // Tiles of n columns of y; of kGreatest, for each of which a row has a part.
    uint32_t column_tiles(uint32_t n) const { return ceil_div(n, column_tile); }
    bool is_gated() const { return result == ProductResult::kGated; }
    // Whether a product that ends in the activation can write it for a reader that takes fragments in this order.
    bool may_write_fragments(uint32_t order) const { return !writes_fragments_alone || order <= kRowFragments; }
    // Whether it can write its result as `reader` takes it.
    bool may_feed(const MatmulPlan& reader) const {
        return reader.x_in_fragments ? may_write_fragments(reader.x_order) : !writes_fragments_alone;
    }
    bool ends_in_stream() const { return result == ProductResult::kResidual; }
    bool operator==(const MatmulPlan&) const = default;
};

}  // namespace lorad::gpu
