// Products on a software device whose subgroups have 8 lanes (matmul_unrolled.comp): plans of MatmulVariant::kLanes
// that have a column tile, and what they are recorded with. Pure.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "gpu/device.h"
#include "gpu/kernels/kernel_options.h"
#include "gpu/kernels/products/matmul_plan.h"
#include "proto/base/rounding.h"

namespace lorad::gpu {

struct UnrolledProduct {
    static constexpr uint32_t kLanes = 8, kColumns = 4;  // of a workgroup, which is one subgroup
    static constexpr uint32_t kFewRows = 2, kManyRows = 4;
    // Elements of k in one program. The driver compiles 1,000 in a second, and longer ones in more than proportion: a
    // product that may be split has at most the first, others the second.
    static constexpr uint32_t kSplitElements = 768, kWholeElements = 2048;

    // In base 8, of numbers below `count`: 1, 3, 5, ..., so that few programs serve all sizes.
    static uint32_t digits_of(uint32_t count) {
        return std::max(ceil_div(static_cast<uint32_t>(std::bit_width(count - 1)), 3u), 1u) | 1;
    }

    // The fewest equal splits of so many units that have at most `most` each; 0: there are none.
    static uint32_t equal_splits(uint32_t units, uint32_t most, uint32_t max_splits) {
        for (uint32_t n = ceil_div(units, most); n <= max_splits; n++) {
            if (units % n == 0) return n;
        }
        return 0;
    }

    // Of plain weights and f32 activations; none where the device has no such subgroups, or equal pieces do not divide
    // a long k.
    static std::optional<MatmulPlan> plan(const DeviceCapabilities& caps, uint32_t k, ScalarType type, uint32_t rows,
                                          uint32_t max_splits) {
        const bool has_type = type == ScalarType::kF32 || (caps.float16 && caps.int16);
        if (!caps.small_workgroups || caps.subgroup_size != kLanes || !has_type) return std::nullopt;
        const uint32_t units = padded(k) / kWeightAlign;
        uint32_t n_splits = equal_splits(units, kSplitElements / kWeightAlign, max_splits);
        if (n_splits == 0) n_splits = equal_splits(units, kWholeElements / kWeightAlign, max_splits);
        if (n_splits == 0) return std::nullopt;
        MatmulPlan plan;
        plan.variant = MatmulVariant::kLanes;
        plan.rows = rows;
        plan.weight_type = type;
        plan.act_type = ScalarType::kF32;
        plan.row_tile = rows <= kFewRows ? kFewRows : kManyRows;
        plan.column_tile = kColumns;
        plan.n_splits = n_splits;
        plan.k_per_split = units / n_splits * kWeightAlign;
        return plan;
    }

    static bool is(const MatmulPlan& plan) { return plan.variant == MatmulVariant::kLanes && plan.column_tile > 1; }
    static const char* module(const MatmulPlan& plan) {
        return plan.weight_type == ScalarType::kF32 ? "matmul_unrolled" : "matmul_unrolled_16";
    }

    static std::vector<uint32_t> constants(const MatmulPlan& plan, uint32_t row_groups, uint32_t column_groups) {
        return {kLanes,
                static_cast<uint32_t>(plan.weight_type),
                plan.row_tile,
                plan.column_tile,
                plan.k_per_split / kLanes,
                digits_of(row_groups),
                std::max(digits_of(column_groups), 5u),
                digits_of(plan.n_splits)};
    }
};

}  // namespace lorad::gpu
