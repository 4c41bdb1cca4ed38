#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {

void ExpertKernels::route(Recorder& recorder, const ExpertRouteParams& params, const RouterShape& shape,
                          uint32_t rows) {
    CHECK(shape.top >= 1 && shape.top <= kTopExpertsMax && shape.top <= shape.experts && shape.experts <= kExpertsMax &&
          params.stride >= shape.experts);
    const uint32_t size = threads(threads_for(shape.experts, 32, 256), 32);
    const Kernel* k = kernel("expert_route", {size, shape.experts, shape.top, shape.rule, shape.normalises,
                                              params.bias != 0, params.expert_scale != 0});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, rows, 1, 1, {"expert_route", uint64_t{rows} * shape.experts * 4, 0});
}

void ExpertKernels::group(Recorder& recorder, ExpertGroupParams params, const RouterShape& shape, uint32_t rows) {
    params.tile_rows = tile_rows(rows);
    params.top = shape.top;
    const uint32_t size = threads(threads_for(rows * shape.top, 32, 256), 32);
    const Kernel* k = kernel("expert_group", {size}, capabilities().subgroup_size);
    if (k == nullptr) return;
    recorder.dispatch(*k, params, shape.experts, 1, 1, {"expert_group", uint64_t{rows} * shape.top * 8, 0});
}

void ExpertKernels::product(Recorder& recorder, const ExpertProductParams& params, const RouterShape& shape,
                            ScalarType weight_type, uint32_t rows) {
    CHECK(params.w_stride % kWeightAlign == 0);
    constexpr uint32_t kWeightRows = 2;  // of a subgroup
    const uint32_t size = threads(128, 32), columns = tile_rows(rows);
    const Kernel* k = kernel("expert_product", {size, static_cast<uint32_t>(weight_type),
                                                static_cast<uint32_t>(act_type(weight_type)), columns, kWeightRows});
    if (k == nullptr) return;
    const uint32_t subgroups = std::max(size / std::max(capabilities().subgroup_size, 1u), 1u),
                   n_tiles = tiles_max(rows * shape.top, shape.experts, columns);
    const uint64_t n_experts = std::min(shape.experts, rows * shape.top);
    recorder.dispatch(*k, params, n_tiles, ceil_div(params.n, kWeightRows * subgroups), 1,
                      {"expert_product", n_experts * params.n * params.w_stride * bytes_of(weight_type),
                       uint64_t{rows} * shape.top * params.n * params.w_stride * 2});
}

void ExpertKernels::act(Recorder& recorder, const ExpertActParams& params, Activation activation, bool clamped,
                        bool in_turns, ScalarType act_type, uint32_t rows) {
    CHECK(params.act_stride >= params.ffn && params.y_stride >= 2 * params.ffn);
    const uint32_t size = threads(128, 32), pairs = rows * params.top;
    const Kernel* k = kernel("expert_act", {size, static_cast<uint32_t>(act_type), static_cast<uint32_t>(activation),
                                            clamped, in_turns, params.bias != 0});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, pairs, ceil_div(params.act_stride / 4, size), 1,
                      {"expert_act", uint64_t{pairs} * params.ffn * (8 + bytes_of(act_type)), 0});
}

void ExpertKernels::lora(Recorder& recorder, const ExpertLoraParams& params, LoraLevel level, ScalarType act_type,
                         uint32_t rows) {
    CHECK(level != LoraLevel::kNone);
    const Kernel* k =
        kernel("expert_lora", {threads(128, 32), static_cast<uint32_t>(act_type), static_cast<uint32_t>(level)});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, rows * params.top, 1, 1, {"expert_lora", 0, 0});
}

void ExpertKernels::sum(Recorder& recorder, const ExpertSumParams& params, uint32_t top, uint32_t rows) {
    CHECK(params.shared_gate == 0 || params.shared_y != 0);
    const uint32_t size = threads(128, 32);
    const Kernel* k =
        kernel("expert_sum", {size, top, params.bias != 0, params.shared_y != 0, params.shared_gate != 0});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, ceil_div(params.hidden, size), rows, 1,
                      {"expert_sum", uint64_t{rows} * params.hidden * 4 * (top + 1), 0});
}

}  // namespace lorad::gpu
