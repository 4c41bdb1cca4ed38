#include "model/forward_attention.h"

#include <cstddef>

namespace lorad::model {

AttentionPass::AttentionPass(gpu::Recorder& recorder, const ForwardContext& context, const StepShape& shape)
    : recorder_(recorder), kernels_(context.kernels), context_(context), config_(context.config), scratch_(context.scratch), shape_(shape), layout_(shape),
      step_(context.scratch.step_state.address()) {}

void AttentionPass::keep(uint32_t layer, const gpu::ConsumerShape& product, uint32_t split_stride) const {
    const LayerWeights& w = context_.weights.layers[layer];
    gpu::QkvShape qkv = qkv_shape(config_, product);
    qkv.keys_f16 = has_f16_keys(layer);
    kernels_.attention.qkv_post(recorder_,
                      {.step = step_,
                       .y = scratch_.y.address(),
                       .bias = context_.address_of(w.qkv_bias, shape_.weight_set),
                       .low = scratch_.low.address(),
                       .lora_layer = context_.lora_layer(layer),
                       .uses = step_ + layout_.uses,
                       .rope = context_.rope_table,
                       .q_gamma = w.q_norm.address(),
                       .k_gamma = w.k_norm.address(),
                       .q_slot_norms = context_.slot_norms(shape_, layer, LoraTable::Norm::kQ),
                       .q = scratch_.q.address(),
                       .kv = context_.kv_cache.layers[layer].address(),
                       .lora_slot_stride = context_.lora_slot_stride(),
                       .y_stride = w.qkv.n_padded,
                       .split_stride = split_stride,
                       .q_stride = gpu::padded(config_.q_size()),
                       .eps = config_.rms_norm_eps,
                       .n_slots = context_.lora_table.n_slots()},
                      qkv);
}

bool AttentionPass::has_f16_keys(uint32_t layer) const { return context_.kv_cache.format.of(layer) == gpu::KvType::kInt8Values; }

void AttentionPass::attend(uint32_t layer, const gpu::ConsumerShape& product, uint32_t split_stride, std::optional<uint32_t> y_order) const {
    if (shape_.lone_rows) {
        attend_from_sums(layer, product, split_stride, y_order);
    } else {
        keep(layer, product, split_stride);
        recorder_.barrier();
        attend_from_queries(layer, y_order);
    }
}

void AttentionPass::attend_from_sums(uint32_t layer, const gpu::ConsumerShape& product, uint32_t split_stride, std::optional<uint32_t> y_order) const {
    const LayerWeights& w = context_.weights.layers[layer];
    kernels_.attention.attention_from_qkv(recorder_,
                                {.step = step_,
                                 .block_tables = step_ + layout_.block_tables,
                                 .sums = scratch_.y.address(),
                                 .bias = context_.address_of(w.qkv_bias, shape_.weight_set),
                                 .rope = context_.rope_table,
                                 .q_gamma = w.q_norm.address(),
                                 .k_gamma = w.k_norm.address(),
                                 .kv = context_.kv_cache.layers[layer].address(),
                                 .y = y_order ? blocks_of(scratch_.attention) : scratch_.attention.address(),
                                 .partials = scratch_.attention_partials.address(),
                                 .sums_stride = w.qkv.n_padded,
                                 .split_stride = split_stride,
                                 .y_stride = w.o.k_stride,
                                 .window = config_.sliding_windows[layer],
                                 .scale = attention_scale(config_),
                                 .softcap = 0.0f,
                                 .eps = config_.rms_norm_eps,
                                 .pad = 0},
                                qkv_shape(config_, product), attention_shape(config_, shape_), kernels_.act_type(w.o.type), y_order);
    recorder_.barrier();
}

void AttentionPass::attend_from_queries(uint32_t layer, std::optional<uint32_t> y_order) const {
    const Matrix& o = context_.weights.layers[layer].o;
    const gpu::AttentionParams params{.step = step_,
                                      .block_tables = step_ + layout_.block_tables,
                                      .q = scratch_.q.address(),
                                      .kv = context_.kv_cache.layers[layer].address(),
                                      .y = scratch_.attention.address(),
                                      .partials = scratch_.attention_partials.address(),
                                      .tiles = step_ + layout_.tiles,
                                      .single_rows = shape_.tiles ? step_ + layout_.single_rows : 0,
                                      .q_stride = gpu::padded(config_.q_size()),
                                      .y_stride = o.k_stride,
                                      .window = config_.sliding_windows[layer],
                                      .scale = attention_scale(config_),
                                      .softcap = 0.0f,
                                      .n_splits = shape_.attention_splits,
                                      .y_blocks = y_order ? blocks_of(scratch_.attention) : 0};
    gpu::AttentionShape rows = attention_shape(config_, shape_);
    rows.keys_f16 = has_f16_keys(layer);
    if (shape_.tiles) {
        kernels_.attention.attention_tiles(recorder_, params, rows, kernels_.act_type(o.type), scratch_.step_state,
                                 offsetof(gpu::StepHeader, tile_grid));
        rows.rows = shape_.single_bucket;
    }
    if (rows.rows > 0) kernels_.attention.attention(recorder_, params, rows, kernels_.act_type(o.type), y_order.value_or(gpu::kBlocksByColumns));
    recorder_.barrier();
    if (!shape_.tiles || shape_.attention_splits == 1) return;
    rows.rows = shape_.row_bucket;
    kernels_.attention.attention_combine(recorder_, params, rows, kernels_.act_type(o.type));
    recorder_.barrier();
}

}  // namespace lorad::model
