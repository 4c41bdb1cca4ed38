#include <algorithm>
#include <array>

#include "gpu/kernel_modules.h"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {
namespace {

// One workgroup's part of a product by expert_matrix.
struct ExpertTileShape {
    uint32_t rows, columns, k, subgroups, subgroups_n;
};
// By the pairs that an expert has in the mean, from the few of a decode step on. Each with half of k for matrices whose
// rows that divides alone.
constexpr std::array kExpertTiles = {ExpertTileShape{16, 64, 128, 4, 4}, ExpertTileShape{16, 64, 64, 4, 4},
                                     ExpertTileShape{32, 64, 128, 4, 4}, ExpertTileShape{32, 64, 64, 4, 4},
                                     ExpertTileShape{64, 128, 64, 4, 2}};
constexpr uint32_t kMatrixMinRows = 9;  // below, most experts have a single pair, and reading is all there is to do

bool fits(const ExpertTileShape& tile, uint32_t n, uint32_t stride, const DeviceCapabilities& caps) {
    const uint32_t size = tile.subgroups * caps.subgroup_size, words = tile.k / 8;
    return n >= tile.columns && n % 4 == 0 && stride % tile.k == 0 && size <= threads_max(caps) && size % words == 0 &&
           tile.columns * words % size == 0 && tile.rows * words % size == 0 &&
           (tile.rows + tile.columns) * (words + 1) * 16 + tile.rows * 4 <= caps.shared_memory_bytes;
}

const ExpertTileShape* tile_for(uint32_t rows, uint32_t n, uint32_t stride, const DeviceCapabilities& caps) {
    for (const ExpertTileShape& tile : kExpertTiles) {
        if (tile.rows == rows && fits(tile, n, stride, caps)) return &tile;
    }
    return nullptr;
}

// The constants of a product that ends in the activation, or that does not.
struct ExpertGateConstants {
    uint32_t gated, activation, clamped, interleaved, has_bias;
};
ExpertGateConstants constants_of(const std::optional<ExpertGate>& gate, bool has_bias) {
    const ExpertGate of = gate.value_or(ExpertGate());
    return {.gated = gate.has_value(),
            .activation = static_cast<uint32_t>(of.activation),
            .clamped = of.clamped,
            .interleaved = of.interleaved,
            .has_bias = gate.has_value() && has_bias};
}

}  // namespace

ExpertPlan ExpertPlanner::plan(const RouterShape& shape, const ExpertMatrices& m, uint32_t rows) const {
    const bool always = options().batch_invariant;
    const bool has_both =
        m.gate_up_kind.type == m.down_kind.type && has_matrices(m.gate_up_kind) && has_matrices(m.down_kind);
    if (has_both && (always || rows >= kMatrixMinRows)) {
        const uint32_t pairs = ceil_div(rows * shape.top, shape.experts), wanted = pairs > 32   ? 64
                                                                                   : pairs > 12 ? 32
                                                                                                : 16;
        uint32_t best = 0;
        for (const uint32_t tile : matrix_tiles(m)) best = tile <= wanted ? tile : best;
        // A workgroup's loads are of gates or of ups, and it writes whole words of outputs that there are.
        const ExpertTileShape* tile = tile_for(best, m.gate_up, m.gate_up_stride, capabilities());
        if (tile != nullptr)
            return {best, true,
                    m.gate_up % (2 * kWeightAlign) == 0 &&
                        tile->columns / 2 % (tile->subgroups * capabilities().subgroup_size * 8 / tile->k) == 0};
    }
    return {always || rows > 8 ? kExpertTileRows : rows > 1 ? 2u : 1u, false, true};
}

const char* ExpertPlanner::matrix_module(WeightKind weights) {
    const bool is_bf16 = weights.type == ScalarType::kBf16;
    if (is_packed(weights.format)) return is_bf16 ? "expert_matrix_packed_bf16" : "expert_matrix_packed_f16";
    return is_bf16 ? "expert_matrix_bf16" : "expert_matrix_f16";
}

bool ExpertPlanner::has_matrices(WeightKind weights) const {
    const std::string module = matrix_module(weights);
    return ladder().has(weights.type) && has_kernel_module(module) &&
           std::ranges::find(options().left_out, module) == options().left_out.end();
}

std::vector<uint32_t> ExpertPlanner::matrix_tiles(const ExpertMatrices& m) const {
    std::vector<uint32_t> all;
    for (const uint32_t rows : {16u, 32u, 64u}) {
        if (tile_for(rows, m.gate_up, m.gate_up_stride, capabilities()) != nullptr &&
            tile_for(rows, m.down, m.down_stride, capabilities()) != nullptr)
            all.push_back(rows);
    }
    return all;
}

void ExpertKernels::route(Recorder& recorder, const ExpertRouteParams& params, const RouterShape& shape,
                          uint32_t n_splits, uint32_t rows) {
    CHECK(shape.top >= 1 && shape.top <= kTopExpertsMax && shape.top <= shape.experts && shape.experts <= kExpertsMax &&
          params.stride >= shape.experts);
    const uint32_t size = threads(threads_for(shape.experts, 32, 256), 32);
    struct Constants {
        uint32_t threads, experts, top, rule, normalises, has_bias, has_scale, splits, has_logit_bias, groups;
    };
    const Kernel* k = kernel("expert_route", Constants{.threads = size,
                                                       .experts = shape.experts,
                                                       .top = shape.top,
                                                       .rule = shape.rule,
                                                       .normalises = shape.normalises,
                                                       .has_bias = params.bias != 0,
                                                       .has_scale = params.expert_scale != 0,
                                                       .splits = n_splits,
                                                       .has_logit_bias = params.logit_bias != 0,
                                                       .groups = rows == 1});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, rows, 1, 1, {"expert_route", uint64_t{rows} * shape.experts * 4 * n_splits, 0});
}

void ExpertKernels::group(Recorder& recorder, ExpertGroupParams params, const RouterShape& shape,
                          const ExpertPlan& plan, uint32_t rows) {
    params.tile_rows = plan.tile_rows;
    params.top = shape.top;
    const uint32_t size = threads(threads_for(rows * shape.top, 32, 256), 32);
    const Kernel* k = kernel("expert_group", WorkgroupConstants{.threads = size}, capabilities().subgroup_size);
    if (k == nullptr) return;
    recorder.dispatch(*k, params, shape.experts, 1, 1, {"expert_group", uint64_t{rows} * shape.top * 8, 0});
}

void ExpertKernels::product(Recorder& recorder, const ExpertProductParams& params, const RouterShape& shape,
                            const ExpertPlan& plan, WeightKind weights, uint32_t rows,
                            const std::optional<ExpertGate>& gate) {
    CHECK(params.w_stride % kWeightAlign == 0 && (!gate || (plan.can_gate && params.y_stride * 2 >= params.n)));
    const uint64_t n_experts = std::min(shape.experts, rows * shape.top);
    const DispatchInfo info{plan.on_matrices ? "expert_matrix" : "expert_product",
                            n_experts * bytes_of(weights.format, params.n, params.w_stride),
                            uint64_t{rows} * shape.top * params.n * params.w_stride * 2};
    if (plan.on_matrices) return on_matrices(recorder, params, shape, plan, weights, rows, gate, info);
    constexpr uint32_t kOutputs = 2;  // of a subgroup
    const uint32_t size = threads(128, 32);
    struct Constants {
        uint32_t threads, weights, act_type, columns, rows;
        ExpertGateConstants gate;
    };
    const Kernel* k = kernel("expert_product", Constants{.threads = size,
                                                         .weights = weights.constant(),
                                                         .act_type = static_cast<uint32_t>(act_type(weights.type)),
                                                         .columns = plan.tile_rows,
                                                         .rows = gate ? 2 * kOutputs : kOutputs,
                                                         .gate = constants_of(gate, params.bias != 0)});
    if (k == nullptr) return;
    const uint32_t subgroups = std::max(size / std::max(capabilities().subgroup_size, 1u), 1u);
    recorder.dispatch(*k, params, tiles_max(rows * shape.top, shape.experts, plan.tile_rows),
                      ceil_div(gate ? params.y_stride : params.n, kOutputs * subgroups), 1, info);
}

void ExpertKernels::on_matrices(Recorder& recorder, const ExpertProductParams& params, const RouterShape& shape,
                                const ExpertPlan& plan, WeightKind weights, uint32_t rows,
                                const std::optional<ExpertGate>& gate, const DispatchInfo& info) {
    const ExpertTileShape* tile = tile_for(plan.tile_rows, params.n, params.w_stride, capabilities());
    CHECK(tile != nullptr && params.y_stride % 4 == 0);
    const uint32_t subgroup = capabilities().subgroup_size;
    struct Constants {
        uint32_t threads, columns, rows, k, subgroups_n, stride, subgroup;
        ExpertGateConstants gate;
    };
    struct PackedConstants {
        Constants constants;
        uint32_t weights;
    };
    const Constants constants{.threads = tile->subgroups * subgroup,
                              .columns = tile->columns,
                              .rows = tile->rows,
                              .k = tile->k,
                              .subgroups_n = tile->subgroups_n,
                              .stride = params.w_stride,
                              .subgroup = subgroup,
                              .gate = constants_of(gate, params.bias != 0)};
    const char* const module = matrix_module(weights);
    const Kernel* k = is_packed(weights.format)
                          ? kernel(module, PackedConstants{constants, weights.constant()}, subgroup)
                          : kernel(module, constants, subgroup);
    if (k == nullptr) return;
    recorder.dispatch(*k, params, ceil_div(params.n, tile->columns),
                      tiles_max(rows * shape.top, shape.experts, plan.tile_rows), 1, info);
}

void ExpertKernels::act(Recorder& recorder, const ExpertActParams& params, Activation activation, bool clamped,
                        bool interleaved, ScalarType act_type, uint32_t rows) {
    CHECK(params.act_stride >= params.ffn && params.y_stride >= 2 * params.ffn);
    const uint32_t size = threads(128, 32), pairs = rows * params.top;
    struct Constants {
        uint32_t threads, act_type, activation, clamped, interleaved, has_bias;
    };
    const Kernel* k = kernel("expert_act", Constants{.threads = size,
                                                     .act_type = static_cast<uint32_t>(act_type),
                                                     .activation = static_cast<uint32_t>(activation),
                                                     .clamped = clamped,
                                                     .interleaved = interleaved,
                                                     .has_bias = params.bias != 0});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, pairs, ceil_div(params.act_stride / 4, size), 1,
                      {"expert_act", uint64_t{pairs} * params.ffn * (8 + bytes_of(act_type)), 0});
}

void ExpertKernels::lora(Recorder& recorder, const ExpertLoraParams& params, LoraLevel level, ScalarType act_type,
                         uint32_t rows) {
    CHECK(level != LoraLevel::kNone);
    struct Constants {
        uint32_t threads, act_type, lora;
    };
    const Kernel* k = kernel("expert_lora", Constants{.threads = threads(128, 32),
                                                      .act_type = static_cast<uint32_t>(act_type),
                                                      .lora = static_cast<uint32_t>(level)});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, rows * params.top, 1, 1, {"expert_lora", 0, 0});
}

void ExpertKernels::sum(Recorder& recorder, const ExpertSumParams& params, uint32_t top, uint32_t rows) {
    CHECK(params.shared_gate == 0 || params.shared_y != 0);
    const uint32_t size = threads(128, 32);
    struct Constants {
        uint32_t threads, top, has_bias, has_shared, has_gate;
    };
    const Kernel* k = kernel("expert_sum", Constants{.threads = size,
                                                     .top = top,
                                                     .has_bias = params.bias != 0,
                                                     .has_shared = params.shared_y != 0,
                                                     .has_gate = params.shared_gate != 0});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, ceil_div(params.hidden, size), rows, 1,
                      {"expert_sum", uint64_t{rows} * params.hidden * 4 * (top + 1), 0});
}

}  // namespace lorad::gpu
