#include <algorithm>
#include <bit>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {
namespace {

// Of gated_norm.comp.
struct GatedNormConstants {
    uint32_t threads, act_type, size, head_size;
};

// delta_step, of prompts and of decodes: rows of a block and of a stage, lanes that have a column's elements, threads.
// Of a prompt of 2,048 rows on an H200 (docs/lab/families.md) blocks of four rows with 16 lanes and 128 threads take
// 713 us, of eight 885, of eight with 32 lanes and 256 threads 587; 64 decodes with 16 lanes 74 us, with 32 lanes 83.
struct DeltaForm {
    uint32_t block, stage, lanes_max, threads_max;
};
constexpr DeltaForm kDeltaPrompts{8, 16, 32, 256}, kDeltaDecodes{1, 4, 16, 128};
constexpr uint32_t kColumnsPerLane = 4;
constexpr uint32_t kStageBytesMax = 16 * 1024;  // of q and k

}  // namespace

void MixerKernels::delta_conv(Recorder& recorder, const DeltaConvParams& params, const DeltaShape& shape,
                              uint32_t rows) {
    CHECK(can_mix(shape) && params.m_stride >= shape.inputs() && params.to_stride >= shape.outputs());
    convolve(recorder, params, shape, false, rows);
}

void MixerKernels::convolve(Recorder& recorder, const DeltaConvParams& params, const DeltaShape& shape, bool is_mamba,
                            uint32_t rows) {
    const uint32_t wide = shape.key_size % 4 == 0 && shape.value_size % 4 == 0 ? 4 : 1;  // elements of a thread at once
    const uint32_t size = threads(threads_for(std::max(shape.key_size, shape.value_size) / wide, 32, 256), 32);
    struct Constants {
        uint32_t threads, key_heads, value_heads, key_size, value_size, taps, is_mamba, has_bias, wide;
    };
    const Kernel* k = kernel("delta_conv", Constants{.threads = size,
                                                     .key_heads = shape.key_heads,
                                                     .value_heads = shape.value_heads,
                                                     .key_size = shape.key_size,
                                                     .value_size = shape.value_size,
                                                     .taps = shape.taps,
                                                     .is_mamba = is_mamba,
                                                     .has_bias = params.bias != 0,
                                                     .wide = wide});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, 2 * shape.key_heads + shape.value_heads, rows, 1,
                      {is_mamba ? "mamba_conv" : "delta_conv", uint64_t{rows} * shape.channels() * 8, 0});
}

void MixerKernels::conv_state(Recorder& recorder, const ConvStateParams& params, uint32_t taps, uint32_t runs) {
    CHECK(taps >= 2 && taps <= kConvTapsMax);
    const uint32_t size = threads(128, 32);
    struct Constants {
        uint32_t threads, taps, has_factor;
    };
    const Kernel* k = kernel("conv_state", Constants{.threads = size, .taps = taps, .has_factor = params.factor != 0});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, ceil_div(params.channels, size), runs, 1,
                      {"conv_state", uint64_t{params.channels} * taps * 8, 0});
}

DeltaPlan MixerPlanner::delta_plan(const DeltaShape& shape, uint32_t runs, uint32_t rows) const {
    const uint32_t subgroup = capabilities().subgroup_size;
    const bool in_blocks = rows > runs && ladder().has(RungId::kDeltaBlocks) && !options().batch_invariant;
    const DeltaForm form = in_blocks ? kDeltaPrompts : kDeltaDecodes;
    // Powers of two, up to the elements of a column by fours and to a subgroup, whose lanes exchange sums.
    const uint32_t lanes = std::bit_floor(std::min({form.lanes_max, ceil_div(shape.key_size, 16) * 4, subgroup}));
    // A software device gains nothing by more, and takes longer to compile them.
    uint32_t block = capabilities().small_workgroups ? std::min(form.block, 4u) : form.block;
    const uint32_t wanted = threads_for(ceil_div(shape.value_size, kColumnsPerLane) * lanes, 32, form.threads_max);
    const uint32_t size = std::max(threads(wanted, std::min(wanted, 64u)), subgroup);
    uint32_t stage = form.stage;
    const uint32_t shared = capabilities().shared_memory_bytes, bytes_max = std::min(kStageBytesMax, shared / 2);
    const auto is_too_large = [&] {
        const uint32_t keys = stage * round_up(round_up(shape.key_size, 16), lanes * 4) * 2 * sizeof(float);
        const uint32_t others = stage * (size / lanes * kColumnsPerLane + block + 2) * sizeof(float);
        return keys > bytes_max || keys + others > shared;
    };
    while (stage > 1 && is_too_large()) {
        stage /= 2;
        block = std::min(block, stage);
    }
    return {.block = block, .stage = stage, .lanes = lanes, .threads = size};
}

void MixerKernels::delta_step(Recorder& recorder, const DeltaStepParams& params, const DeltaShape& shape, uint32_t runs,
                              uint32_t rows) {
    CHECK(can_mix(shape));
    recur(recorder, params, shape, true, runs, rows);
}

void MixerKernels::recur(Recorder& recorder, const DeltaStepParams& params, const DeltaShape& shape, bool corrects,
                         uint32_t runs, uint32_t rows) {
    CHECK(params.c_stride >= shape.outputs() && params.to_stride >= shape.values());
    const DeltaPlan plan = delta_plan(shape, runs, rows);
    struct Constants {
        uint32_t threads, key_heads, value_heads, key_size, value_size, corrects, block, stage, lanes;
    };
    const Kernel* k = kernel("delta_step",
                             Constants{.threads = plan.threads,
                                       .key_heads = shape.key_heads,
                                       .value_heads = shape.value_heads,
                                       .key_size = shape.key_size,
                                       .value_size = shape.value_size,
                                       .corrects = corrects,
                                       .block = plan.block,
                                       .stage = plan.stage,
                                       .lanes = plan.lanes},
                             capabilities().subgroup_size);
    if (k == nullptr) return;
    recorder.dispatch(*k, params, ceil_div(shape.value_size, plan.threads / plan.lanes * kColumnsPerLane),
                      shape.value_heads, runs,
                      {corrects ? "delta_step" : "mamba_step", uint64_t{runs} * shape.state_floats() * 8,
                       uint64_t{rows} * shape.state_floats() * (corrects ? 8 : 6)});
}

void MixerKernels::mamba_conv(Recorder& recorder, const DeltaConvParams& params, const MambaShape& shape,
                              uint32_t rows) {
    CHECK(can_mix(shape) && params.m_stride >= shape.inputs() && params.to_stride >= shape.outputs());
    convolve(recorder, params, shape.recurrence(), true, rows);
}

void MixerKernels::mamba_step(Recorder& recorder, const DeltaStepParams& params, const MambaShape& shape, uint32_t runs,
                              uint32_t rows) {
    CHECK(can_mix(shape));
    recur(recorder, params, shape.recurrence(), false, runs, rows);
}

void MixerKernels::mamba_norm(Recorder& recorder, const GatedNormParams& params, const MambaShape& shape,
                              ScalarType act_type, uint32_t rows) {
    CHECK(can_mix(shape) && params.x_stride >= shape.inner() && params.y_stride >= shape.inner());
    const uint32_t group = shape.inner() / shape.groups, n_threads = threads(threads_for(group / 4, 32, 512), 32);
    const Kernel* k = kernel("gated_norm", GatedNormConstants{.threads = n_threads,
                                                              .act_type = static_cast<uint32_t>(act_type),
                                                              .size = group,
                                                              .head_size = shape.head_size});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, shape.groups, rows, 1, {"mamba_norm", uint64_t{rows} * shape.inner() * 16, 0});
}

void MixerKernels::gated_norm(Recorder& recorder, const GatedNormParams& params, uint32_t heads, uint32_t size,
                              ScalarType act_type, uint32_t rows) {
    CHECK(size % 4 == 0 && heads * size <= params.y_stride);
    const uint32_t n_threads = threads(threads_for(size / 4, 32, 64), 32);
    const Kernel* k =
        kernel("gated_norm",
               GatedNormConstants{
                   .threads = n_threads, .act_type = static_cast<uint32_t>(act_type), .size = size, .head_size = 0});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, heads, rows, 1, {"gated_norm", uint64_t{rows} * heads * size * 12, 0});
}

void MixerKernels::short_conv(Recorder& recorder, const ShortConvParams& params, uint32_t taps, ScalarType act_type,
                              uint32_t rows) {
    CHECK(taps >= 2 && taps <= kConvTapsMax && params.m_stride >= 3 * params.channels &&
          params.y_stride >= params.channels);
    const uint32_t size = threads(128, 32);
    struct Constants {
        uint32_t threads, act_type, taps, has_bias;
    };
    const Kernel* k = kernel(
        "short_conv",
        Constants{
            .threads = size, .act_type = static_cast<uint32_t>(act_type), .taps = taps, .has_bias = params.bias != 0});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, ceil_div(params.y_stride / 4, size), rows, 1,
                      {"short_conv", uint64_t{rows} * params.channels * 16, 0});
}

void MixerKernels::gate_rows(Recorder& recorder, const GateRowsParams& params, uint32_t size, ScalarType act_type,
                             uint32_t rows) {
    CHECK(size % 4 == 0 && params.width % size == 0 && params.width <= params.y_stride);
    const uint32_t n_threads = threads(128, 32);
    struct Constants {
        uint32_t threads, act_type, size;
    };
    const Kernel* k =
        kernel("gate_rows", Constants{.threads = n_threads, .act_type = static_cast<uint32_t>(act_type), .size = size});
    if (k == nullptr) return;
    recorder.dispatch(*k, params, ceil_div(params.width / 4, n_threads), rows, 1,
                      {"gate_rows", uint64_t{rows} * params.width * 12, 0});
}

}  // namespace lorad::gpu
