#include "model/forward/forward_mixers.h"

#include "model/exec/state_cache.h"

namespace lorad::model {

void MixerParts::sum_to(uint32_t layer, LoraGroup group, const Product& product, const Matrix& w, const Vector& bias,
                        DeviceAddress to, uint32_t to_stride) {
    const ModuleGroup& modules = kModuleRanges[group];
    gpu::SumPartsParams params{.step = rows_state(),
                               .y = scratch_.y.address(),
                               .bias = address_of(bias),
                               .low = scratch_.low.address(),
                               .lora_layer = context_.lora_layer(layer),
                               .uses = step_ + layout_.uses,
                               .to = to,
                               .lora_slot_stride = context_.lora_slot_stride(),
                               .first_module = static_cast<uint32_t>(modules.first),
                               .n_modules = modules.n_modules,
                               .y_stride = w.n_padded,
                               .split_stride = split_stride(w, product.plan),
                               .to_stride = to_stride,
                               .module_end = {}};
    uint32_t end = 0;
    for (uint32_t m = 0; m < modules.n_modules; ++m) {
        params.module_end[m] = end +=
            config_.shape(layer, static_cast<LinearModule>(static_cast<uint32_t>(modules.first) + m)).n;
    }
    kernels_.rows.sum_parts(recorder_, params, consumer(product));
    recorder_.barrier();
}

MixerParts::Product MixerParts::sum_up(uint32_t layer, LoraGroup group, Product product, const Matrix& w,
                                       const Vector& bias) {
    // One part without anything to add is finished.
    if (product.plan.n_splits > 1 || address_of(bias) != 0 || consumer(product).lora != gpu::LoraLevel::kNone)
        sum_to(layer, group, product, w, bias, scratch_.y.address(), w.n_padded);
    product.plan.n_splits = 1;
    product.plan.whole_rows = 0;
    product.has_adapters = true;
    return product;
}

void MixerParts::mix_delta(uint32_t layer, const Product& input, bool keeps_only) {
    const LayerWeights& w = weights_.layers[layer];
    const StateCache::Layer& state = context_.states.layers[layer];
    const gpu::DeltaShape shape = delta_shape(facts_[layer].delta);
    sum_up(layer, kDeltaIn, input, w.qkv, w.qkv_bias);
    const DeviceAddress m = scratch_.y.address(), mixed = scratch_.mixed.address(), attended = scratch_.q.address();
    kernels_.mixers.delta_conv(recorder_,
                               {.step = step_,
                                .runs = runs(),
                                .m = m,
                                .weights = w.conv.address(),
                                .bias = 0,
                                .a_log = w.a_log.address(),
                                .dt_bias = w.dt_bias.address(),
                                .state = state.conv.address(),
                                .to = mixed,
                                .m_stride = w.qkv.n_padded,
                                .to_stride = shape.outputs(),
                                .slot_stride = state.sizes.conv_floats,
                                .dt_min = 0,
                                .dt_max = 0,
                                .pad = 0},
                               shape, shape_.row_bucket);
    recorder_.barrier();
    kernels_.mixers.conv_state(recorder_,
                               {.step = step_,
                                .runs = runs(),
                                .m = m,
                                .state = state.conv.address(),
                                .m_stride = w.qkv.n_padded,
                                .slot_stride = state.sizes.conv_floats,
                                .channels = shape.channels(),
                                .factor = 0},
                               shape.taps, shape_.state_runs);
    kernels_.mixers.delta_step(recorder_,
                               {.step = step_,
                                .runs = runs(),
                                .c = mixed,
                                .state = state.delta.address(),
                                .to = attended,
                                .c_stride = shape.outputs(),
                                .slot_stride = state.sizes.delta_floats,
                                .to_stride = shape.values(),
                                .pad = 0},
                               shape, shape_.state_runs, shape_.row_bucket);
    recorder_.barrier();
    if (keeps_only) return;
    kernels_.mixers.gated_norm(recorder_,
                               {.step = step_,
                                .x = attended,
                                .gate = m + uint64_t{shape.channels()} * sizeof(float),
                                .skip_x = 0,
                                .skip = 0,
                                .gamma = w.delta_norm.address(),
                                .slot_norms = context_.slot_norms(shape_, layer, LoraTable::Norm::kMixer),
                                .y = attention_,
                                .x_stride = shape.values(),
                                .gate_stride = w.qkv.n_padded,
                                .skip_stride = 0,
                                .y_stride = w.o.k_stride,
                                .eps = config_.rms_norm_eps,
                                .pad = 0},
                               shape.value_heads, shape.value_size, act_type(w.o.type), shape_.row_bucket);
    recorder_.barrier();
}

void MixerParts::mix_conv(uint32_t layer, const Product& input, bool keeps_only) {
    const LayerWeights& w = weights_.layers[layer];
    const StateCache::Layer& state = context_.states.layers[layer];
    const uint32_t channels = config_.hidden_size, taps = facts_[layer].conv.taps;
    sum_up(layer, kConvInGroup, input, w.qkv, w.qkv_bias);
    const DeviceAddress m = scratch_.y.address();
    if (!keeps_only) {
        kernels_.mixers.short_conv(recorder_,
                                   {.step = step_,
                                    .runs = runs(),
                                    .m = m,
                                    .weights = w.conv.address(),
                                    .bias = w.conv_bias.address(),
                                    .state = state.conv.address(),
                                    .y = attention_,
                                    .m_stride = w.qkv.n_padded,
                                    .slot_stride = state.sizes.conv_floats,
                                    .channels = channels,
                                    .y_stride = w.o.k_stride},
                                   taps, act_type(w.o.type), shape_.row_bucket);
        recorder_.barrier();
    }
    kernels_.mixers.conv_state(recorder_,
                               {.step = step_,
                                .runs = runs(),
                                .m = m,
                                .state = state.conv.address(),
                                .m_stride = w.qkv.n_padded,
                                .slot_stride = state.sizes.conv_floats,
                                .channels = channels,
                                .factor = 2 * channels},
                               taps, shape_.state_runs);
    recorder_.barrier();
}

void MixerParts::mix_mamba(uint32_t layer, const Product& input, bool keeps_only) {
    const LayerWeights& w = weights_.layers[layer];
    const StateCache::Layer& state = context_.states.layers[layer];
    const MambaFacts& facts = facts_[layer].mamba;
    const gpu::MambaShape shape = mamba_shape(facts);
    sum_up(layer, kConvInGroup, input, w.qkv, w.qkv_bias);
    const DeviceAddress m = scratch_.y.address(), mixed = scratch_.mixed.address(), attended = scratch_.q.address();
    kernels_.mixers.mamba_conv(recorder_,
                               {.step = step_,
                                .runs = runs(),
                                .m = m,
                                .weights = w.conv.address(),
                                .bias = w.conv_bias.address(),
                                .a_log = w.a_log.address(),
                                .dt_bias = w.dt_bias.address(),
                                .state = state.conv.address(),
                                .to = mixed,
                                .m_stride = w.qkv.n_padded,
                                .to_stride = shape.outputs(),
                                .slot_stride = state.sizes.conv_floats,
                                .dt_min = facts.dt_min,
                                .dt_max = facts.dt_max,
                                .pad = 0},
                               shape, shape_.row_bucket);
    recorder_.barrier();
    kernels_.mixers.conv_state(recorder_,
                               {.step = step_,
                                .runs = runs(),
                                .m = m + uint64_t{shape.inner()} * sizeof(float),
                                .state = state.conv.address(),
                                .m_stride = w.qkv.n_padded,
                                .slot_stride = state.sizes.conv_floats,
                                .channels = shape.channels(),
                                .factor = 0},
                               shape.taps, shape_.state_runs);
    kernels_.mixers.mamba_step(recorder_,
                               {.step = step_,
                                .runs = runs(),
                                .c = mixed,
                                .state = state.delta.address(),
                                .to = attended,
                                .c_stride = shape.outputs(),
                                .slot_stride = state.sizes.delta_floats,
                                .to_stride = shape.inner(),
                                .pad = 0},
                               shape, shape_.state_runs, shape_.row_bucket);
    recorder_.barrier();
    if (keeps_only) return;
    kernels_.mixers.mamba_norm(recorder_,
                               {.step = step_,
                                .x = attended,
                                .gate = m,
                                .skip_x = mixed + uint64_t{2} * shape.keys() * sizeof(float),
                                .skip = w.skip.address(),
                                .gamma = w.delta_norm.address(),
                                .slot_norms = context_.slot_norms(shape_, layer, LoraTable::Norm::kMixer),
                                .y = attention_,
                                .x_stride = shape.inner(),
                                .gate_stride = w.qkv.n_padded,
                                .skip_stride = shape.outputs(),
                                .y_stride = w.o.k_stride,
                                .eps = config_.rms_norm_eps,
                                .pad = 0},
                               shape, act_type(w.o.type), shape_.row_bucket);
    recorder_.barrier();
}

void MixerParts::gate_attention(uint32_t layer) {
    const LayerWeights& w = weights_.layers[layer];
    const AttentionFacts& facts = facts_[layer].attention;
    kernels_.mixers.gate_rows(recorder_,
                              {.step = step_,
                               .gate = scratch_.y.address() + uint64_t{facts.head_dim} * sizeof(float),
                               .y = attention_,
                               .gate_stride = w.qkv.n_padded,
                               .gate_head = 2 * facts.head_dim,
                               .y_stride = w.o.k_stride,
                               .width = facts.q_size()},
                              facts.head_dim, act_type(w.o.type), shape_.row_bucket);
    recorder_.barrier();
}

}  // namespace lorad::model
