#include "model/forward/forward_attention.h"

#include <algorithm>
#include <cstddef>

namespace lorad::model {

AttentionPass::AttentionPass(gpu::Recorder& recorder, const ForwardContext& context, const StepShape& shape)
    : recorder_(recorder),
      kernels_(context.kernels),
      context_(context),
      config_(context.config),
      scratch_(context.scratch),
      shape_(shape),
      layout_(shape),
      step_(context.scratch.step_state.address()) {}

// Norms over all heads of a row come before anything that is done by heads; the sums are finished then.
void AttentionPass::norm_wide(uint32_t layer, const AttentionFacts& facts, const gpu::ConsumerShape& product,
                              uint32_t split_stride) const {
    const LayerWeights& w = context_.weights.layers[layer];
    const uint32_t q = facts.q_size(), k = q + facts.k_rows(), v = k + facts.v_rows();
    kernels_.rows.finish_sums(recorder_,
                              {.step = step_,
                               .y = scratch_.y.address(),
                               .bias = context_.address_of(w.qkv_bias, shape_.weight_set),
                               .low = scratch_.low.address(),
                               .lora_layer = context_.lora_layer(layer),
                               .uses = step_ + layout_.uses,
                               .gamma = {w.q_norm.address(), w.k_norm.address()},
                               .slot_norms = context_.slot_norms(shape_, layer, LoraTable::Norm::kQ),
                               .lora_slot_stride = context_.lora_slot_stride(),
                               .first_module = gpu::kLoraQ,
                               .n_modules = kModuleRanges[kQkv].n_modules,
                               .y_stride = w.qkv.n_padded,
                               .split_stride = split_stride,
                               .n_slots = context_.lora_table.n_slots(),
                               .eps = config_.rms_norm_eps,
                               .module_end = {q, k, v, v},
                               .pad = 0},
                              product);
    recorder_.barrier();
}

void AttentionPass::keep(uint32_t layer, gpu::ConsumerShape product, uint32_t split_stride) const {
    const LayerWeights& w = context_.weights.layers[layer];
    const AttentionFacts facts = config_.layer(layer).attention;
    const bool is_wide = facts.qk_norm == QkNorm::kFullWidth, is_finished = is_wide || facts.output_gate;
    if (is_wide) {
        norm_wide(layer, facts, product, split_stride);
        product = {.rows = product.rows};
    }
    gpu::QkvShape qkv = qkv_shape(config_, facts, product);
    qkv.keys_f16 = has_f16_keys(layer);
    if (facts.kv_from) qkv.n_kv_heads = 0;
    kernels_.attention.qkv_post(recorder_,
                                {.step = step_of(layer),
                                 .y = scratch_.y.address(),
                                 .bias = is_finished ? 0 : context_.address_of(w.qkv_bias, shape_.weight_set),
                                 .low = scratch_.low.address(),
                                 .lora_layer = context_.lora_layer(layer),
                                 .uses = step_ + layout_.uses,
                                 .rope = context_.rope_tables.of(facts),
                                 .q_gamma = is_wide ? 0 : w.q_norm.address(),
                                 .k_gamma = is_wide ? 0 : w.k_norm.address(),
                                 .q_slot_norms = is_wide ? 0 : context_.slot_norms(shape_, layer, LoraTable::Norm::kQ),
                                 .q = scratch_.q.address(),
                                 .kv = kv_of(layer, facts),
                                 .lora_slot_stride = context_.lora_slot_stride(),
                                 .y_stride = w.qkv.n_padded,
                                 .split_stride = split_stride,
                                 .q_stride = gpu::padded(facts.q_size()),
                                 .eps = config_.rms_norm_eps,
                                 .n_slots = context_.lora_table.n_slots()},
                                qkv);
}

gpu::AttentionShape AttentionPass::rows_of(const AttentionFacts& facts) const {
    gpu::AttentionShape rows = attention_shape(facts, shape_);
    rows.context_max = facts.window != 0 ? std::min(facts.window, context_.n_positions_max) : context_.n_positions_max;
    return rows;
}

bool AttentionPass::has_f16_keys(uint32_t layer) const {
    return context_.kv_cache.format.of(config_.layer(layer).attention.kv_from.value_or(layer)) ==
           gpu::KvType::kInt8Values;
}

// Header and rows with the blocks of the layer's group.
gpu::DeviceAddress AttentionPass::step_of(uint32_t layer) const {
    return shape_.window_rows && context_.kv_cache.windowed[layer] ? step_ + layout_.window_header : step_;
}

gpu::DeviceAddress AttentionPass::kv_of(uint32_t layer, const AttentionFacts& facts) const {
    return context_.kv_cache.layers[facts.kv_from.value_or(layer)].address();
}

void AttentionPass::attend(uint32_t layer, const gpu::ConsumerShape& product, uint32_t split_stride,
                           std::optional<uint32_t> y_order) const {
    if (shape_.lone_rows) {
        attend_from_sums(layer, product, split_stride, y_order);
    } else {
        keep(layer, product, split_stride);
        recorder_.barrier();
        attend_from_queries(layer, y_order);
    }
}

void AttentionPass::attend_from_sums(uint32_t layer, const gpu::ConsumerShape& product, uint32_t split_stride,
                                     std::optional<uint32_t> y_order) const {
    const LayerWeights& w = context_.weights.layers[layer];
    const AttentionFacts facts = config_.layer(layer).attention;
    kernels_.attention.attention_from_qkv(
        recorder_,
        {.step = step_of(layer),
         .block_tables = step_ + layout_.block_tables,
         .sums = scratch_.y.address(),
         .bias = context_.address_of(w.qkv_bias, shape_.weight_set),
         .rope = context_.rope_tables.of(facts),
         .q_gamma = w.q_norm.address(),
         .k_gamma = w.k_norm.address(),
         .kv = kv_of(layer, facts),
         .y = y_order ? fragments_of(scratch_.attention) : scratch_.attention.address(),
         .partials = scratch_.attention_partials.address(),
         .sums_stride = w.qkv.n_padded,
         .split_stride = split_stride,
         .y_stride = w.o.k_stride,
         .window = facts.window,
         .scale = facts.scale,
         .softcap = facts.softcap,
         .eps = config_.rms_norm_eps,
         .never = 0},
        qkv_shape(config_, facts, product), rows_of(facts), kernels_.act_type(w.o.type), y_order);
    recorder_.barrier();
}

void AttentionPass::attend_from_queries(uint32_t layer, std::optional<uint32_t> y_order) const {
    const Matrix& o = context_.weights.layers[layer].o;
    const AttentionFacts facts = config_.layer(layer).attention;
    const bool by_tiles = shape_.tiles && attends_by_tile(kernels_.planner().attention, facts);
    const gpu::AttentionParams params{.step = step_of(layer),
                                      .block_tables = step_ + layout_.block_tables,
                                      .q = scratch_.q.address(),
                                      .kv = kv_of(layer, facts),
                                      .y = scratch_.attention.address(),
                                      .partials = scratch_.attention_partials.address(),
                                      .tiles = step_ + layout_.tiles,
                                      .single_rows = by_tiles ? step_ + layout_.single_rows : 0,
                                      .q_stride = gpu::padded(facts.q_size()),
                                      .y_stride = o.k_stride,
                                      .window = facts.window,
                                      .scale = facts.scale,
                                      .softcap = facts.softcap,
                                      .n_splits = shape_.attention_splits,
                                      .y_fragments = y_order ? fragments_of(scratch_.attention) : 0,
                                      .sinks = context_.weights.layers[layer].sinks.address()};
    gpu::AttentionShape rows = rows_of(facts);
    rows.keys_f16 = has_f16_keys(layer);
    if (by_tiles) {
        kernels_.attention.attention_tiles(recorder_, params, rows, kernels_.act_type(o.type), scratch_.step_state,
                                           offsetof(gpu::StepHeader, tile_grid));
        rows.rows = shape_.single_bucket;
    }
    if (rows.rows > 0)
        kernels_.attention.attention(recorder_, params, rows, kernels_.act_type(o.type),
                                     y_order.value_or(gpu::kFragmentsByColumns));
    recorder_.barrier();
    if (!shape_.tiles || shape_.attention_splits == 1) return;
    rows.rows = shape_.row_bucket;
    kernels_.attention.attention_combine(recorder_, params, rows, kernels_.act_type(o.type));
    recorder_.barrier();
}

}  // namespace lorad::model
