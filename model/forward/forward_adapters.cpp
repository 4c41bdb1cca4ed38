#include "model/forward/forward_adapters.h"

#include <cstddef>

namespace lorad::model {
namespace {

static_assert(kModuleGroups <= gpu::kShrinkGroups && kLinearModules == gpu::kLoraModules &&
              kDenseGroups == gpu::kLoraGroups);
uint32_t first_module(LoraGroup group) { return static_cast<uint32_t>(kModuleRanges[group].first); }
uint32_t n_modules(LoraGroup group) { return kModuleRanges[group].n_modules; }

}  // namespace

AdapterPass::AdapterPass(gpu::Recorder& recorder, const ForwardContext& context, const StepShape& shape)
    : recorder_(recorder),
      kernels_(context.kernels),
      context_(context),
      scratch_(context.scratch),
      has_adapters_(shape.lora != gpu::LoraLevel::kNone),
      stacked_(shape.is_stacked()),
      layout_(shape),
      step_(context.scratch.step_state.address()),
      segments_(layout_.segments) {}

void AdapterPass::keep_rows() {
    header_ = layout_.kept;
    segments_ = layout_.kept_segments;
    stacked_ = false;
}

void AdapterPass::shrink(uint32_t layer, LoraGroup group, gpu::DeviceAddress x, const Matrix& base, uint32_t rows,
                         gpu::ShrinkPlace place) const {
    if (!has_adapters_) return;
    const uint64_t dispatch = header_ + offsetof(gpu::StepHeader, shrink) + group * sizeof(gpu::ShrinkDispatch);
    kernels_.lora.lora_shrink(recorder_,
                              {.lora_layer = context_.lora_layer(layer),
                               .segments = step_ + segments_,
                               .x = x,
                               .low = scratch_.low.address(),
                               .parts = scratch_.shrink_parts.address(),
                               .lora_slot_stride = context_.lora_slot_stride(),
                               .first_module = first_module(group),
                               .n_modules = n_modules(group),
                               .k = base.k,
                               .x_stride = base.k_stride,
                               .pad = 0,
                               .stacked = stacked_ ? step_ + layout_.stacked_of(group) : 0,
                               .stacked_low = scratch_.stacked_low.address(),
                               .grid = 0},
                              kernels_.act_type(base.type), rows, place, scratch_.step_state, dispatch);
}

void AdapterPass::stack(uint32_t layer, LoraGroup group, gpu::DeviceAddress x, const Matrix& base,
                        uint32_t rows) const {
    shrink(layer, group, x, base, rows, gpu::ShrinkPlace::kFirst);
    gpu::LoraStackParams params{.step = step_,
                                .group = step_ + layout_.stacked_of(group),
                                .windows = step_ + layout_.windows_of(group),
                                .lora_layer = context_.lora_layer(layer),
                                .b = scratch_.stacked_b.address(),
                                .low = scratch_.stacked_low.address(),
                                .lora_slot_stride = context_.lora_slot_stride(),
                                .first_module = first_module(group),
                                .n_modules = n_modules(group),
                                .n = base.n_padded,
                                .module_end = {},
                                .pad = 0};
    set_module_ends(layer, group, params.module_end);
    kernels_.lora.lora_stack(recorder_, params, base.type);
    recorder_.barrier();
}

gpu::StackedAdapters AdapterPass::stacked(LoraGroup group) const {
    return {.windows = step_ + layout_.windows_of(group),
            .b = scratch_.stacked_b.address(),
            .low = scratch_.stacked_low.address(),
            .columns = gpu::kLoraGroupModules[group] * gpu::kStackedModuleColumns};
}

gpu::RunAdapters AdapterPass::runs(uint32_t layer, LoraGroup group) const {
    gpu::RunAdapters runs{.step = step_,
                          .lora_layer = context_.lora_layer(layer),
                          .low = scratch_.low.address(),
                          .lora_slot_stride = context_.lora_slot_stride(),
                          .first_module = first_module(group),
                          .n_modules = n_modules(group),
                          .module_end = {}};
    set_module_ends(layer, group, runs.module_end);
    return runs;
}

void AdapterPass::expand(uint32_t layer, LoraGroup group, const Matrix& base) const {
    gpu::LoraExpandParams params{.n_segments = step_ + header_ + offsetof(gpu::StepHeader, n_segments),
                                 .segments = step_ + segments_,
                                 .lora_layer = context_.lora_layer(layer),
                                 .low = scratch_.low.address(),
                                 .y = scratch_.y.address(),
                                 .lora_slot_stride = context_.lora_slot_stride(),
                                 .first_module = first_module(group),
                                 .n_modules = n_modules(group),
                                 .y_stride = base.n_padded,
                                 .module_end = {},
                                 .pad = 0};
    set_module_ends(layer, group, params.module_end);
    kernels_.lora.lora_expand(recorder_, params);
}

// Sets the end of the columns of each module of a group's product.
void AdapterPass::set_module_ends(uint32_t layer, LoraGroup group, uint32_t (&module_end)[3]) const {
    CHECK(n_modules(group) <= 3);
    uint32_t end = 0;
    for (uint32_t m = 0; m < n_modules(group); ++m) {
        end += context_.config.shape(layer, static_cast<LinearModule>(first_module(group) + m)).n;
        module_end[m] = end;
    }
}

}  // namespace lorad::model
