// Plans and recordings of products by warpgroups (warpgroup_text.h, warpgroup_direct_text.h).
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/persistent/meeting.h"
#include "gpu/kernels/products/activation_blocks.h"
#include "gpu/kernels/products/warpgroup_direct_text.h"
#include "gpu/kernels/products/warpgroup_text.h"
#include "gpu/kernels/products/warpgroup_tiles.h"

namespace lorad::gpu {
namespace {

// Rows for which warpgroups are faster than KHR matrices (docs/PERFORMANCE.md, "Products by warpgroups").
constexpr uint32_t kFewRowsMin = 33, kFewRowsMax = kDirectRowsMax, kManyRowsMin = 128;

// of products that say rows' greatest sums; of fewer sums are few, and these were not measured
constexpr uint32_t kArgmaxRowsMin = 17;

// H200, prompts of 2,048 tokens: 74 ms by warpgroups with 16 ranks, 170 with 64, 89 by KHR matrices with 16
// (docs/PERFORMANCE.md, "Prompts with adapters").
constexpr uint32_t kLongRunsRankMax = 16;

// Whether products of so many rows are by warpgroups, of few rows from few_min on.
bool are_by_warpgroup(uint32_t rows, uint32_t few_min) {
    return (rows >= few_min && rows <= kFewRowsMax) || rows >= kManyRowsMin;
}

// Of w straight in registers.
constexpr uint64_t kDirectBytesMin = 16 << 20;  // of the matrix; smaller ones were not measured

MatmulPlan plan_of(MatmulVariant variant, uint32_t x_order, uint32_t rows, uint32_t n_splits, uint32_t k_per_split,
                   ScalarType type) {
    MatmulPlan plan;
    plan.variant = variant;
    plan.rows = rows;
    plan.n_splits = n_splits;
    plan.k_per_split = k_per_split;
    plan.x_in_blocks = true;
    plan.x_order = x_order;
    plan.weight_type = plan.act_type = type;
    return plan;
}

}  // namespace

bool ProductPlanner::multiplies_by_warpgroup(ScalarType type, uint32_t rows) const {
    return are_by_warpgroup(rows, kFewRowsMin) && ladder().has_warpgroup(type) && !options().batch_invariant;
}

bool ProductPlanner::consumers_add_long_runs(uint32_t rank_max, uint32_t rows, ScalarType weight_type) const {
    return rank_max <= kLongRunsRankMax && rows >= kManyRowsMin && multiplies_by_warpgroup(weight_type, rows);
}

MatmulPlan ProductPlanner::plan_of_warpgroup(uint32_t tile, uint32_t rows, uint32_t n_splits, uint32_t k_per_split,
                                             ScalarType type) {
    MatmulPlan plan = plan_of(MatmulVariant::kWarpgroup, kBlocksByRows, rows, n_splits, k_per_split, type);
    plan.tile = tile;
    plan.row_tile = kWarpgroupTiles[tile].rows();
    plan.column_tile = kWarpgroupTiles[tile].columns;
    return plan;
}

namespace {

std::optional<MatmulPlan> plan_of_best_tile(const WarpgroupWish& wish, ScalarType type) {
    const WarpgroupChoice choice = choose_warpgroup_tile(wish);
    if (choice.k_per_split == 0) return std::nullopt;
    return ProductPlanner::plan_of_warpgroup(choice.tile, wish.rows, choice.n_splits, choice.k_per_split, type);
}

}  // namespace

std::optional<MatmulPlan> ProductPlanner::plan_warpgroup(uint32_t n, uint32_t k, ScalarType type, uint32_t rows,
                                                         uint32_t max_splits, bool gated) const {
    if (!multiplies_by_warpgroup(type, rows)) return std::nullopt;
    return plan_of_best_tile({.n = n,
                              .stride = padded(k),
                              .rows = rows,
                              .max_splits = max_splits,
                              .multiprocessors = multiprocessors(capabilities()),
                              .gated = gated},
                             type);
}

namespace {

// WarpgroupProgram::row_blocks
uint32_t row_blocks_of(const MatmulPlan& plan) {
    return plan.rows < plan.row_tile ? ceil_div(plan.rows, kBlockRows) : 0;
}

const char* lora_name(ScalarType type) {
    return type == ScalarType::kBf16 ? "matmul_warpgroup_gated_lora_bf16" : "matmul_warpgroup_gated_lora_f16";
}

const char* transposed_name(ScalarType type, bool joined) {
    if (joined)
        return type == ScalarType::kBf16 ? "matmul_warpgroup_transposed_joined_bf16"
                                         : "matmul_warpgroup_transposed_joined_f16";
    return type == ScalarType::kBf16 ? "matmul_warpgroup_transposed_bf16" : "matmul_warpgroup_transposed_f16";
}

const char* warpgroup_name(ScalarType type, bool gated, bool joined) {
    static constexpr const char* kNames[2][2][2] = {
        // [gated][joined][bf16]
        {{"matmul_warpgroup_f16", "matmul_warpgroup_bf16"},
         {"matmul_warpgroup_joined_f16", "matmul_warpgroup_joined_bf16"}},
        {{"matmul_warpgroup_gated_f16", "matmul_warpgroup_gated_bf16"},
         {"matmul_warpgroup_gated_joined_f16", "matmul_warpgroup_gated_joined_bf16"}}};
    return kNames[gated][joined][type == ScalarType::kBf16];
}

// Of each kind of parameters, the product's own and the module that takes them.
MatmulParams& product_of(MatmulParams& params) { return params; }
MatmulParams& product_of(MatmulJoinedParams& params) { return params.product; }
MatmulParams& product_of(MatmulArgmaxParams& params) { return params.product; }
const char* name_of(const MatmulParams&, ScalarType type, bool gated) { return warpgroup_name(type, gated, false); }
const char* name_of(const MatmulJoinedParams&, ScalarType type, bool gated) {
    return warpgroup_name(type, gated, true);
}
const char* name_of(const MatmulArgmaxParams&, ScalarType type, bool) {
    return type == ScalarType::kBf16 ? "matmul_warpgroup_argmax_bf16" : "matmul_warpgroup_argmax_f16";
}

}  // namespace

template <typename Params>
void ProductKernels::matmul_warpgroup(Recorder& recorder, Params all_params, const MatmulPlan& plan, bool gated,
                                      uint32_t y_order, uint32_t joined_columns, bool transposed) {
    const WarpgroupTile& tile = kWarpgroupTiles[plan.tile];
    MatmulParams& params = product_of(all_params);
    CHECK(!gated || (plan.n_splits == 1 && params.y == 0 && params.y_blocks != 0));
    params.k_per_split = plan.k_per_split;
    params.pad = 0;
    MatmulParams whole = params;
    if (gated) whole.n *= 2;
    const char* name = transposed ? transposed_name(plan.weight_type, joined_columns > 0)
                                  : name_of(all_params, plan.weight_type, gated);
    const uint32_t row_blocks = row_blocks_of(plan);
    const uint32_t row_tiles = ceil_div(plan.rows, plan.row_tile), tiles = ceil_div(whole.n, tile.columns);
    // No more workgroups than run at once, and a multiprocessor's ones beside each other: fewer pages for it to know
    // (docs/PERFORMANCE.md, "The same rows for a group of multiprocessors").
    const uint32_t units = capabilities().n_compute_units_hint, at_once = tile.at_once * units;
    const bool in_turns = takes_turns(tiles, row_tiles, plan.n_splits, at_once);
    const bool by_unit = row_tiles == 1 && (in_turns || tiles * plan.n_splits <= at_once);
    const Kernel* k =
        kernel(name, {tile.threads(), plan.tile, params.x_stride, row_blocks, gated ? params.n : 0, gated ? y_order : 0,
                      by_unit ? units : 0, in_turns ? 1u : 0u, joined_columns, transposed ? params.w_stride : 0});
    if (k == nullptr) return;
    recorder.dispatch(*k, all_params, row_tiles, plan.n_splits, in_turns ? at_once : tiles,
                      product_info(name, whole, plan));
}

template void ProductKernels::matmul_warpgroup(Recorder&, MatmulParams, const MatmulPlan&, bool, uint32_t, uint32_t,
                                               bool);

void ProductKernels::matmul_transposed(Recorder& recorder, const MatmulParams& params, const MatmulPlan& plan) {
    CHECK(plan.variant == MatmulVariant::kWarpgroup && params.w_stride % kWeightAlign == 0 &&
          params.x_stride % kWeightAlign == 0);
    matmul_warpgroup(recorder, params, plan, false, kBlocksByColumns, 0, true);
}

void ProductKernels::matmul_with_more_k(Recorder& recorder, const MatmulJoinedParams& params, const MatmulPlan& plan,
                                        uint32_t columns, bool transposed) {
    CHECK(plan.variant == MatmulVariant::kWarpgroup && plan.row_tile == kJoinedTileRows && columns % kJoinedStep == 0);
    matmul_warpgroup(recorder, params, plan, false, kBlocksByColumns, columns, transposed);
}

std::optional<MatmulPlan> ProductPlanner::plan_many_rows(const WarpgroupWish& wish, ScalarType type) const {
    WarpgroupWish of_device = wish;
    of_device.multiprocessors = multiprocessors(capabilities());
    return plan_of_best_tile(of_device, type);
}

namespace {

uint32_t tiles_of(const MatmulPlan& plan, uint32_t ffn) { return ceil_div(2 * ffn, plan.column_tile); }

}  // namespace

bool ProductPlanner::gates_lora(const MatmulPlan& plan, uint32_t ffn, uint32_t k) const {
    // Of the only tile that was measured; a thread has 48 sums, and registers for no more where three workgroups share
    // a multiprocessor.
    constexpr uint32_t kPiecesMax = 2, kColumns = 96;
    if (plan.variant != MatmulVariant::kWarpgroup || plan.rows > kGatedLoraRows || !plan.x_in_blocks) return false;
    const WarpgroupTile& tile = kWarpgroupTiles[plan.tile];
    const uint32_t units = capabilities().n_compute_units_hint, tiles = tiles_of(plan, ffn);
    return tile.rows() == kGatedLoraRows && tile.columns == kColumns && tile.k == 128 && !tile.overlaps &&
           padded(k) >= kGatedLoraStepsMin * tile.k && tiles <= tile.at_once * units &&
           gated_lora_pieces(kGatedLoraRows, tiles) <= kPiecesMax;
}

void ProductKernels::matmul_gated_lora(Recorder& recorder, GatedLoraParams params, const MatmulPlan& plan,
                                       uint32_t y_order) {
    MatmulParams& product = params.product;
    const WarpgroupTile& tile = kWarpgroupTiles[plan.tile];
    CHECK(gates_lora(plan, product.n, product.k) && product.y_blocks != 0);
    product.pad = 0;
    product.k_per_split = plan.k_per_split;
    params.max_polls = kMeetingPollsMax;
    const uint32_t row_blocks = row_blocks_of(plan);
    const char* name = lora_name(plan.weight_type);
    const Kernel* k = kernel(name, {tile.threads(), plan.tile, product.w_stride, row_blocks, product.n, y_order,
                                    capabilities().n_compute_units_hint, 0, 0, 0});
    if (k == nullptr) return;
    MatmulParams whole = product;
    whole.n *= 2;
    recorder.dispatch(*k, params, 1, 1, tiles_of(plan, product.n), product_info(name, whole, plan));
}

std::optional<MatmulPlan> ProductPlanner::plan_argmax(uint32_t n, uint32_t k, ScalarType type, uint32_t rows) const {
    if (!are_by_warpgroup(rows, kArgmaxRowsMin) || !ladder().has_argmax(type) || options().batch_invariant)
        return std::nullopt;
    const std::optional<MatmulPlan> plan = plan_of_best_tile(
        {.n = n, .stride = padded(k), .rows = rows, .multiprocessors = multiprocessors(capabilities())}, type);
    return plan && argmax_parts(*plan, n) <= kSamplePartsMax ? plan : std::nullopt;
}

void ProductKernels::matmul_argmax(Recorder& recorder, MatmulArgmaxParams params, const MatmulPlan& plan) {
    CHECK(plan.variant == MatmulVariant::kWarpgroup && plan.n_splits == 1 &&
          argmax_parts(plan, params.product.n) <= kSamplePartsMax);
    params.n_parts = argmax_parts(plan, params.product.n);
    params.pad = 0;
    matmul_warpgroup(recorder, params, plan, false);
}

void ProductKernels::matmul_joined(Recorder& recorder, const MatmulJoinedParams& params, const MatmulPlan& plan,
                                   uint32_t n_modules) {
    matmul_warpgroup(recorder, params, plan, false, kBlocksByColumns, n_modules * kJoinedModuleColumns);
}

void ProductKernels::matmul_gated_joined(Recorder& recorder, const MatmulJoinedParams& params, const MatmulPlan& plan,
                                         uint32_t n_modules, uint32_t y_order) {
    matmul_warpgroup(recorder, params, plan, true, y_order, n_modules * kJoinedModuleColumns);
}

MatmulPlan ProductPlanner::plan_of_direct(uint32_t column_blocks, uint32_t rows, uint32_t n_splits,
                                          uint32_t k_per_split, ScalarType type) {
    MatmulPlan plan = plan_of(MatmulVariant::kWarpgroupDirect, kBlocksOfARow, rows, n_splits, k_per_split, type);
    plan.row_tile = round_up(rows, kBlockRows);
    plan.column_tile = column_blocks * kDirectColumnBlock;
    return plan;
}

std::optional<MatmulPlan> ProductPlanner::plan_direct(uint32_t n, uint32_t k, ScalarType type, uint32_t rows,
                                                      uint32_t max_splits, bool leaves_room) const {
    const bool pays =
        rows >= kFewRowsMin && rows <= kFewRowsMax && uint64_t{padded(n)} * padded(k) * 2 >= kDirectBytesMin;
    if (!pays || !ladder().has_direct(type) || options().batch_invariant) return std::nullopt;
    const DirectChoice choice = choose_direct({.n = padded(n),
                                               .stride = padded(k),
                                               .rows = rows,
                                               .max_splits = max_splits,
                                               .multiprocessors = multiprocessors(capabilities()),
                                               .leaves_room = leaves_room});
    if (choice.k_per_split == 0) return std::nullopt;
    return plan_of_direct(choice.column_blocks, rows, choice.n_splits, choice.k_per_split, type);
}

void ProductKernels::matmul_direct(Recorder& recorder, MatmulParams params, const MatmulPlan& plan,
                                   const PagesAhead& ahead) {
    params.pad = 0;
    const char* name = variant_name(plan);
    const DirectProgram program{.column_blocks = plan.column_tile / kDirectColumnBlock,
                                .row_blocks = plan.row_tile / kBlockRows};
    const Kernel* k = kernel(name, {program.threads(), program.column_blocks, params.w_stride, program.row_blocks});
    if (k == nullptr) return;
    recorder.dispatch(*k, MatmulDirectParams{params, ahead}, 1, plan.n_splits,
                      ceil_div(params.y_stride, plan.column_tile), product_info(name, params, plan));
}

}  // namespace lorad::gpu
