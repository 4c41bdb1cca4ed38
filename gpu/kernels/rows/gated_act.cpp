#include <algorithm>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kRowsForSideBySide = 128;  // of the recording; fewer rows seldom share an adapter
constexpr uint32_t kRowThreads = 64;          // then
constexpr uint32_t kRowsEachMax = 4;          // of a thread, which takes several so that all threads run side by side
constexpr uint32_t kThreadsAtOnceWithLora = 640;  // of a multiprocessor; they have 96 registers each
constexpr uint32_t kMatrixSubgroups = 4, kMatrixColumns = 16 * kMatrixSubgroups;  // of gated_act_matrix

}  // namespace

bool RowPlanner::gates_by_matrix(const GatedActParams& params, const ConsumerShape& shape, ScalarType act_type) const {
    return options().lora_on_matrices && !options().batch_invariant && ladder().has(RungId::kGatedAct, act_type) &&
           shape.few_runs && shape.lora == LoraLevel::kPlain && params.bias == 0 && params.ffn % kMatrixColumns == 0 &&
           params.y_stride % kWeightAlign == 0 && shape.rows % kAdapterTileRows == 0;
}

void RowKernels::gated_act(Recorder& recorder, const GatedActParams& params, const ConsumerShape& shape,
                           Activation activation, ScalarType act_type, uint32_t fragment_order) {
    const uint64_t row_bytes = uint64_t{params.ffn} * (8 * shape.n_splits + bytes_of(act_type));
    CHECK(params.act_fragments == 0 || act_type != ScalarType::kF32);
    if (gates_by_matrix(params, shape, act_type)) {
        CHECK(params.act != 0 && params.act_fragments == 0);
        const char* name = act_type == ScalarType::kBf16 ? "gated_act_bf16" : "gated_act_f16";
        const uint32_t subgroup = capabilities().subgroup_size;
        struct Constants {
            uint32_t threads, subgroup, subgroups, activation, splits, ffn, stride, whole_rows;
        };
        const Kernel* k = kernel(name,
                                 Constants{.threads = kMatrixSubgroups * subgroup,
                                           .subgroup = subgroup,
                                           .subgroups = kMatrixSubgroups,
                                           .activation = static_cast<uint32_t>(activation),
                                           .splits = shape.n_splits,
                                           .ffn = params.ffn,
                                           .stride = params.y_stride,
                                           .whole_rows = shape.whole_rows},
                                 subgroup);
        if (k == nullptr) return;
        recorder.dispatch(*k, params, params.ffn / kMatrixColumns, shape.rows / kAdapterTileRows, 1,
                          {name, shape.rows * row_bytes, 0});
        return;
    }
    const bool lora = shape.lora != LoraLevel::kNone;
    // Rows of one adapter side by side read its B once from beyond the multiprocessor.
    uint32_t side_by_side = lora && shape.rows >= kRowsForSideBySide ? options().expand_rows : 1;
    uint32_t size = side_by_side == 1 ? threads(128, 32) : threads(kRowThreads * side_by_side, 8 * side_by_side);
    side_by_side = std::min(side_by_side, size / 8);
    uint32_t column_groups = ceil_div(params.act_stride / 4, size / side_by_side), rows_each = 1;
    if (shape.rows <= kSteadyRows && side_by_side == 1) {
        const uint32_t at_once = (lora ? kThreadsAtOnceWithLora : kThreadsAtOnce) * multiprocessors(capabilities());
        const uint32_t turns = ceil_div(shape.rows * column_groups * size, at_once);
        if (lora)
            column_groups = ceil_div(column_groups, turns);
        else
            rows_each = std::min({turns, kRowsEachMax, shape.rows});
    }
    struct Constants {
        uint32_t threads, act_type, activation, splits, lora, has_bias, aligned, exchange, rows, whole_rows, rows_each,
            in_rows, in_blocks;
    };
    const Kernel* k = kernel("gated_act", Constants{.threads = size,
                                                    .act_type = static_cast<uint32_t>(act_type),
                                                    .activation = static_cast<uint32_t>(activation),
                                                    .splits = shape.n_splits,
                                                    .lora = static_cast<uint32_t>(shape.lora),
                                                    .has_bias = params.bias != 0,
                                                    .aligned = params.ffn % 4 == 0,
                                                    .exchange = params.ffn % 16 == 0,
                                                    .rows = side_by_side,
                                                    .whole_rows = shape.whole_rows,
                                                    .rows_each = rows_each,
                                                    .in_rows = params.act != 0,
                                                    .in_blocks = params.act_fragments != 0 ? 1 + fragment_order : 0});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, column_groups, ceil_div(shape.rows, side_by_side * rows_each), 1,
                      {"gated_act", shape.rows * row_bytes, 0});
}

}  // namespace lorad::gpu
