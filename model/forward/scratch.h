// The device memory that steps work in, and how much of it the largest step needs.
#pragma once

#include <array>
#include <cstdint>

#include "gpu/device.h"
#include "gpu/kernels/kernels.h"
#include "model/config/config.h"
#include "model/exec/kv_cache.h"
#include "model/step/step_shape.h"
#include "model/weights/weights.h"
#include "proto/base/result.h"

namespace lorad::model {

class StepPlanner;

struct ForwardLimits {
    uint32_t n_rows_max = 0;
    uint32_t n_outputs_max = 0;
    uint32_t n_sequences_max = 0;
    uint32_t n_positions_max = 0;

    uint64_t n_table_entries_max() const { return uint64_t{n_sequences_max} * blocks_for_tokens(n_positions_max); }
};

// Elements between two splits: whole row tiles, so that a variant may write its last tile in full, less those rows in
// front that are in the first one alone. A row lies at row * n_padded in each.
inline uint32_t split_stride(const Matrix& w, const gpu::MatmulPlan& plan) {
    return (round_up(plan.rows, plan.row_tile) - plan.whole_rows) * w.n_padded;
}
inline uint64_t product_elements(const Matrix& w, const gpu::MatmulPlan& plan) {
    return uint64_t{plan.n_splits} * split_stride(w, plan) + uint64_t{plan.whole_rows + gpu::kSlackRows} * w.n_padded;
}
// The place of a 16-bit type in fragments (gpu/kernels/products/activation_fragments.h), beside or instead of rows, in
// a buffer with room for f32: its second half.
inline gpu::DeviceAddress fragments_of(const gpu::Buffer& buffer) { return buffer.address() + buffer.size() / 2; }
inline gpu::QkvShape qkv_shape(const ModelConfig& config, const AttentionFacts& attention,
                               const gpu::ConsumerShape& base) {
    return {.base = base,
            .n_q_heads = attention.n_heads,
            .n_kv_heads = attention.n_kv_heads,
            .head_dim = attention.head_dim,
            .rotary_dim = attention.rope == kNoRope ? 0 : config.rope_of(attention.rope).rotary_dim,
            .pair_stride = attention.rope == kNoRope ? 0 : config.rope_of(attention.rope).pair_stride,
            .v_norm = attention.v_norm,
            .k_is_v = attention.k_is_v,
            .position_beta = attention.position_scale.beta,
            .position_original = attention.position_scale.original,
            .output_gate = attention.output_gate};
}
inline gpu::AttentionShape attention_shape(const AttentionFacts& attention, const StepShape& shape) {
    return {.rows = shape.row_bucket,
            .n_q_heads = attention.n_heads,
            .n_kv_heads = attention.n_kv_heads,
            .head_dim = attention.head_dim,
            .n_splits = shape.attention_splits,
            .joined = !shape.tiles && shape.schedule != LayerSchedule::kApart,
            .sinks = attention.sinks};
}

// Returns true if a layer's attention takes tiles of rows.
inline bool attends_by_tile(const gpu::AttentionPlanner& planner, const AttentionFacts& attention) {
    return !attention.sinks && planner.attends_by_tile(attention.head_dim);
}

// A layer's matrices in the order of LoraGroup; what it has not is empty.
inline std::array<const Matrix*, gpu::kLoraGroups> products_of(const LayerWeights& w) {
    return {&w.qkv, &w.o, &w.gate_up, &w.down};
}
// Device memory that one step works in; steps take turns in it.
struct Scratch {
    gpu::Buffer step_state;
    gpu::Buffer x;  // [rows][H] f32, the residual stream
    // [rows][H] normed, in the next matmul's input type; in fragments, of a 16-bit type, in the second half
    gpu::Buffer xn;
    gpu::Buffer y;                       // [splits][rows][n] f32, result of the last matmul
    gpu::Buffer q;                       // [rows][Q D] f32
    gpu::Buffer attention;               // [rows][Q D], input of o; in fragments as xn
    gpu::Buffer act;                     // [rows][F], input of down; in fragments as xn
    gpu::Buffer low;                     // shrink results
    gpu::Buffer stacked_b, stacked_low;  // of the product's MatmulStackedParams
    gpu::Buffer norms;                   // gpu/kernels/products/deferred_norm.h
    gpu::Buffer shrink_parts;            // LoraShrinkParams::parts
    gpu::Buffer ple;                     // [rows][layers * numbers] f32, of embeddings per layer
    gpu::Buffer mixed;                   // [rows][DeltaShape::outputs()] f32, of delta nets
    gpu::Buffer experts;                 // ExpertPlaces
    gpu::Buffer attention_partials;
    gpu::Buffer output_xn;  // [outputs][H] final norm of the rows whose next token is wanted; in fragments as xn
    gpu::Buffer logits;     // [outputs][V] f32
    gpu::Buffer sample_partials;
    gpu::Buffer sampled;   // i32[outputs], read by the next step's embed
    gpu::Buffer results;   // SampleResult[outputs]
    gpu::Buffer logprobs;  // ChoiceLogprobs[outputs]
    gpu::Buffer masks;     // u32[n_sequences_max][mask_words(V)]
    gpu::Buffer unpacked;  // a packed matrix as a plain one; of models that have any
};

constexpr uint64_t kStepStateBytesMin = 1024;  // smallest size class in which a step's state is copied

// Bytes of each of the above, in that order; their sum goes into the memory plan.
struct ScratchBytes {
    uint64_t step_state, x, xn, y, q, attention, act, low, stacked_b, stacked_low, norms, shrink_parts, ple, mixed,
        experts, attention_partials, output_xn, logits, sample_partials, sampled, results, logprobs, masks, unpacked;
    uint64_t sum() const;
};
// The sizes for the largest step that the planner may plan.
ScratchBytes scratch_bytes(const StepPlanner& planner, const gpu::KernelPlanner& kernels, const ModelConfig& config,
                           const ModelWeights& shapes, const ForwardLimits& limits);
Result<Scratch> create_scratch(gpu::Device& device, const ScratchBytes& bytes);

}  // namespace lorad::model
