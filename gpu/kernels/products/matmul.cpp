#include <algorithm>
#include <bit>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/products/matmul_unrolled.h"
#include "gpu/kernels/products/matmul_unrolled.params.h"
#include "gpu/kernels/products/register_tiles.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kMatvecMaxRows = 8;
constexpr uint32_t kMatvecRowsBesideRegisters = 4;  // blocks in registers take as long for any rows up to 8
constexpr uint32_t kLanesMaxRows = 8;
constexpr uint32_t kTiledColumns = 64;
constexpr uint32_t kPackedRowsMax = 64;  // more are faster with a plain copy of the weights

// Splits of k that give the device enough workgroups (or subgroups) of work, each at least min_k long.
uint32_t splits_to_fill(uint32_t wanted, uint32_t present, uint32_t k, uint32_t min_k, uint32_t max_splits) {
    uint32_t splits = std::clamp(ceil_div(wanted, present), 1u, std::max(max_splits, 1u));
    return std::clamp(k / min_k, 1u, splits);
}

void set_splits(MatmulPlan& plan, uint32_t k, uint32_t n_splits) {
    plan.k_per_split = round_up(ceil_div(padded(k), n_splits), kWeightAlign);
    plan.n_splits = ceil_div(padded(k), plan.k_per_split);
}

}  // namespace

MatmulPlan ProductPlanner::plan_matmul(uint32_t n, uint32_t k, ScalarType weight_type, uint32_t rows,
                                       uint32_t max_splits, bool may_be_in_blocks, bool adds_adapters,
                                       bool leaves_room) const {
    if (may_be_in_blocks && !adds_adapters) {
        if (const auto plan = plan_direct(n, k, weight_type, rows, max_splits, leaves_room)) return *plan;
        if (const auto plan = plan_warpgroup(n, k, weight_type, rows, max_splits)) return *plan;
    }
    if (ladder().has(weight_type))
        return plan_fast(fast_variant(n, rows, weight_type), n, k, weight_type, rows, max_splits, may_be_in_blocks);
    if (const auto unrolled = UnrolledProduct::plan(capabilities(), k, weight_type, rows, max_splits)) return *unrolled;
    return plan_portable(n, k, weight_type, rows, max_splits);
}

MatmulPlan ProductPlanner::plan_packed(const PackedShape& w, const ProductWish& wish) const {
    const bool has_matrices = ladder().has(w.type);
    if (multiplies_packed(w) && (!wish.may_unpack || options().batch_invariant || wish.rows <= kPackedRowsMax))
        return plan_on_matrices(w, wish);
    // Beside matrix units the portable kernels are for few rows.
    if (!has_matrices || !wish.may_unpack || (wish.rows <= kMatvecMaxRows && !options().batch_invariant)) {
        MatmulPlan plan = plan_portable(w.n, w.k, w.type, wish.rows, wish.max_splits, true);
        plan.packed = static_cast<WeightFormat>(std::countr_zero(w.formats));
        return plan;
    }
    MatmulPlan plan = plan_matmul(w.n, w.k, w.type, wish.rows, wish.max_splits, wish.may_be_in_blocks,
                                  wish.adds_adapters, wish.leaves_room);
    plan.unpacks = true;
    return plan;
}

MatmulPlan ProductPlanner::plan_portable(uint32_t n, uint32_t k, ScalarType weight_type, uint32_t rows,
                                         uint32_t max_splits, bool is_packed) const {
    const DeviceCapabilities& caps = capabilities();
    uint32_t units = multiprocessors(caps);
    MatmulPlan plan;
    plan.rows = rows;
    plan.weight_type = weight_type;
    plan.act_type = act_type(weight_type);
    // What was measured to be faster: plain weights of 16 bits.
    const bool in_registers =
        ladder().registers && !options().batch_invariant && !is_packed && weight_type != ScalarType::kF32;
    const uint32_t matvec_rows = in_registers ? kMatvecRowsBesideRegisters : kMatvecMaxRows;
    if (caps.small_workgroups) {
        plan.variant = MatmulVariant::kLanes;
        plan.row_tile = std::min(rows, kLanesMaxRows);
        set_splits(plan, k, 1);
        return plan;
    }
    if (rows <= matvec_rows && !options().batch_invariant) {
        plan.variant = MatmulVariant::kMatvec;
        plan.row_tile = rows;
        plan.column_tile = rows > 4 ? 4 : n >= 8192 || rows > 2 ? 2 : 1;
        uint32_t subgroups = ceil_div(n, plan.column_tile);
        set_splits(plan, k, splits_to_fill(units * 16, subgroups, k, 1024, max_splits));
        return plan;
    }
    // With batch_invariant the splits may not depend on the rows.
    const auto splits = [&](uint32_t row_tiles) {
        return splits_to_fill(units * 3, padded(n) / kTiledColumns * row_tiles, k, 512, std::min(max_splits, 8u));
    };
    if (in_registers) {
        plan.short_sum = ladder().short_sums && weight_type == ScalarType::kF16 ? kShortSum : 0;
        if (const auto blocks = plan_registers(plan, n, k, max_splits)) return *blocks;
        plan.short_sum = 0;
    }
    plan.variant = MatmulVariant::kTiled;
    plan.row_tile = rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
    plan.column_tile = kTiledColumns;
    set_splits(plan, k, splits(options().batch_invariant ? 1 : ceil_div(rows, plan.row_tile)));
    return plan;
}

void ProductKernels::matmul(Recorder& recorder, MatmulParams params, const MatmulPlan& plan, const PagesAhead& ahead) {
    CHECK(plan.k_per_split % kWeightAlign == 0 && params.w_stride % kWeightAlign == 0 &&
          params.x_stride == params.w_stride);
    params.k_per_split = plan.k_per_split;
    uint32_t weight = plan.weights().constant();
    uint32_t act = static_cast<uint32_t>(plan.act_type);
    uint32_t row_groups = ceil_div(plan.rows, plan.row_tile);
    DispatchInfo info = product_info("matmul", params, plan);
    switch (plan.variant) {
        case MatmulVariant::kMatvec: {
            info.name = "matmul_matvec";
            uint32_t size = threads(128, 32);
            const Kernel* k = kernel("matmul_matvec", {size, weight, act, plan.row_tile, plan.column_tile});
            if (k == nullptr) return;
            uint32_t subgroups = std::max(size / std::max(capabilities().subgroup_size, 1u), 1u);
            recorder.dispatch(*k, params, ceil_div(params.n, plan.column_tile * subgroups), row_groups, plan.n_splits,
                              info);
            return;
        }
        case MatmulVariant::kLanes: {
            if (UnrolledProduct::is(plan)) {
                CHECK(plan.n_splits * plan.k_per_split == params.w_stride);
                info.name = variant_name(plan);
                const uint32_t column_groups = padded(params.n) / plan.column_tile;
                const Kernel* k = kernel(info.name, UnrolledProduct::constants(plan, row_groups, column_groups),
                                         UnrolledProduct::kLanes);
                if (k == nullptr) return;
                recorder.dispatch(*k, MatmulUnrolledParams{.product = params, .digits = {0, 1, 2, 3, 4, 5, 6, 7}},
                                  row_groups, column_groups, plan.n_splits, info);
                return;
            }
            info.name = "matmul_lanes";
            uint32_t size = threads(64, 32);
            const Kernel* k = kernel("matmul_lanes", {size, weight, act, plan.row_tile});
            if (k == nullptr) return;
            recorder.dispatch(*k, params, ceil_div(params.n, size), row_groups, plan.n_splits, info);
            return;
        }
        case MatmulVariant::kGemv:
        case MatmulVariant::kCoopmat:
        case MatmulVariant::kCoopmat2: return matmul_fast(recorder, params, plan);
        case MatmulVariant::kRegisters: return matmul_registers(recorder, params, plan);
        case MatmulVariant::kPacked: return matmul_packed(recorder, params, plan);
        case MatmulVariant::kWarpgroup: return matmul_warpgroup(recorder, params, plan, false);
        case MatmulVariant::kWarpgroupDirect: return matmul_direct(recorder, params, plan, ahead);
        case MatmulVariant::kTiled: {
            info.name = "matmul_tiled";
            const Kernel* k = kernel("matmul_tiled", {256, weight, act, plan.row_tile / 16});
            if (k == nullptr) return;
            recorder.dispatch(*k, params, padded(params.n) / kTiledColumns, row_groups, plan.n_splits, info);
            return;
        }
    }
}

}  // namespace lorad::gpu
