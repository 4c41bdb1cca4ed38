// The arguments of a recorded product: weights, input, the rows' adapters, and where the result goes. Of the parts
// behind `product` only those are read that the plan has.
#pragma once

#include <cstdint>

#include "gpu/kernels/products/activation_fragments.h"
#include "gpu/kernels/products/matmul.params.h"
#include "gpu/kernels/products/prefetch_pages.h"

namespace lorad::gpu {

// AdapterForm::kRuns, at LoraLevel::kPlain; the group's shrink is complete.
struct RunAdapters {
    uint64_t step = 0;        // StepHeader, StepRow[]
    uint64_t lora_layer = 0;  // as in MatmulLoraParams
    uint64_t low = 0;
    uint32_t lora_slot_stride = 0;
    uint32_t first_module = 0, n_modules = 0;
    uint32_t module_end[3] = {};  // of a gated product not read
};

// AdapterForm::kStacked, at LoraLevel::kPlain: x w^T + low b^T, or x w + low b where w has rows of k, of what
// lora_stack and a lora_shrink with params.stacked wrote before the last barrier. For rows of few adapters in each
// kStackedTileRows.
struct StackedAdapters {
    uint64_t windows = 0;  // as in MatmulStackedParams
    uint64_t b = 0;
    uint64_t low = 0;
    uint32_t columns = 0;  // of b and low, a multiple of kStackedStep
};

// AdapterForm::kInside: rows of any adapters of rank up to kGatedLoraRanks in the weights' type. Workgroups wait at a
// barrier of the whole grid.
struct InsideAdapters {
    uint64_t x_rows = 0;  // as in GatedLoraParams
    uint64_t lora_layer = 0;
    uint64_t low = 0;
    uint64_t sync = 0;
    uint64_t given_up = 0;
    uint32_t lora_slot_stride = 0;
};

// Product::norm_is_deferred: of the norm that the product with kResidual has left.
struct DeferredNorm {
    uint64_t norms = 0;   // deferred_norm.h
    uint32_t hidden = 0;  // elements of a row that the norm is of
    float eps = 0;
    uint32_t n_tiles = 0;  // MatmulPlan::column_tiles() of that product
};

// ProductResult::kResidual: stream[t] += bias + x[t] . w^T, and xn as deferred_norm.h has it for the norm that follows.
struct ResidualOutput {
    uint64_t bias = 0;  // as in MatmulResidualParams
    uint64_t stream = 0;
    uint64_t gamma = 0;
    uint64_t xn = 0;
    uint64_t norms = 0;
    uint32_t stream_stride = 0, xn_stride = 0;
};

struct ProductArguments {
    // k_per_split is filled in from the plan. Of a gated product n is gates, without their ups, y the activation or 0,
    // y_fragments the same in fragments or 0; of kResidual and kGreatest y is not written, of kGreatest n is the
    // vocabulary.
    MatmulParams product = {};
    uint32_t y_order = kFragmentsByColumns;  // of y_fragments
    // Asked for at the end by those that can: kWarpgroupDirect and kGatedLora.
    PrefetchPages prefetch = {};
    RunAdapters runs = {};
    StackedAdapters stacked = {};
    InsideAdapters inside = {};
    DeferredNorm norm = {};
    ResidualOutput residual = {};
    // ProductResult::kGreatest: SampleArgmaxParams::partials. Behind it and a barrier comes
    // SamplingKernels::sample_join, which reads the MatmulPlan::column_tiles() parts.
    uint64_t partials = 0;
};

}  // namespace lorad::gpu
