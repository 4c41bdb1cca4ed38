// The kernels between the sums of q, k and v and the output of attention.
#pragma once

#include <optional>

#include "gpu/command.h"
#include "gpu/kernels/attention/attention.params.h"
#include "gpu/kernels/attention/attention_from_qkv.params.h"
#include "gpu/kernels/attention/qkv_post.params.h"
#include "gpu/kernels/consumer_shape.h"
#include "gpu/kernels/kernel_cache.h"
#include "gpu/kernels/kernel_facts.h"
#include "gpu/kernels/products/activation_fragments.h"

namespace lorad::gpu {

struct QkvShape {
    ConsumerShape base;
    // rotary_dim even, <= head_dim; no KV heads: queries alone
    uint32_t n_q_heads = 0, n_kv_heads = 0, head_dim = 0, rotary_dim = 0;
    bool keys_f16 = false;  // the layer's cache is KvType::kInt8Values
    // Only qkv_post reads the following:
    uint32_t pair_stride = 0;  // from an element of a pair that rope rotates to the other; 0: rotary_dim / 2
    bool v_norm = false;       // value heads are normed, without weights
    // values are what the key heads give before norm and rope; the product has no rows for them
    bool k_is_v = false;
    float position_beta = 0.0f;  // queries times 1 + beta ln(1 + floor(position / original))
    uint32_t position_original = 0;
    // the product has for each query head its query rows, then those of its gate; its sums are finished
    bool output_gate = false;
};

struct AttentionShape {
    uint32_t rows = 0;
    uint32_t n_q_heads = 0, n_kv_heads = 0, head_dim = 0;
    uint32_t n_splits = 1;     // > 1: the context is cut into that many pieces, at most kAttentionSplitsMax
    bool joined = true;        // by a second dispatch; otherwise the pieces stay in params.partials
    bool keys_f16 = false;     // the layer's cache is KvType::kInt8Values
    bool sinks = false;        // AttentionParams::sinks, which attention() alone knows
    uint32_t context_max = 0;  // tokens that a row sees at most, for who cuts long work; 0: not known

    uint64_t flops_most() const { return uint64_t{rows} * n_q_heads * head_dim * 4 * context_max; }
};

class AttentionPlanner : public Planner {
  public:
    explicit AttentionPlanner(const KernelFacts& facts) : Planner(facts) {}

    // Splits that pay for attention over contexts up to max_context; 1 with batch_invariant.
    uint32_t plan_attention_splits(uint32_t rows, uint32_t n_kv_heads, uint32_t max_context) const;
    // The same for attention_tiles.
    uint32_t plan_tile_splits(uint32_t n_tiles, uint32_t n_q_heads, uint32_t max_context) const;
    // The most that a step with this row bucket may have, for its tiles or the rows outside of them: what the memory of
    // partial results is for.
    uint32_t attention_splits_max(uint32_t row_bucket, uint32_t n_kv_heads, uint32_t max_context) const;
    bool attends_in_fragments(const AttentionShape& shape, ScalarType act_type) const;
    bool attends_from_qkv(const QkvShape& qkv, const AttentionShape& shape) const;
    bool attends_by_tile(uint32_t head_dim) const { return tile_attention(head_dim) != TileAttention::kAuto; }
    // The kernel for tiles of rows; kAuto: none.
    TileAttention tile_attention(uint32_t head_dim) const;
    // The most rows of a tile in a step of up to `rows`, which AttentionShape says to attention_tiles().
    uint32_t attention_tile_rows(uint32_t head_dim, uint32_t rows) const;
    // Returns true if attention() takes all query heads of a KV head together, on matrices: queries and weights are
    // rounded to f16 then.
    bool groups_heads(const AttentionShape& shape) const;
    // Bytes of scratch that the kernels above need.
    static uint64_t attention_partial_bytes(const AttentionShape& shape);

  protected:
    bool heads_attend_from_sums(const AttentionShape& shape) const;
};

// Each method records one dispatch unless it says otherwise. Several threads may record at once, each into its own
// Recorder.
class AttentionKernels : public AttentionPlanner, private KernelRecorder {
  public:
    AttentionKernels(const KernelFacts& facts, KernelCache& cache) : AttentionPlanner(facts), KernelRecorder(cache) {}

    // v = sum over splits + bias + LoRA; q and k: optional RMS norm per head, rotate-half rope on the first rotary_dim;
    // q -> f32, k and v -> the cache's type at the row's kv_slot. Moves 4 S (Q + 2K) D in, 4 Q D + 4 K D out, per row.
    void qkv_post(Recorder& recorder, const QkvPostParams& params, const QkvShape& shape);
    // y[t][h] = softmax(scale * q . K) V over the row's own sequence, positions 0..p within the window. All K and V of
    // this step must be in the cache. With splits that are joined this records two dispatches and the barrier between
    // them.
    // fragment_order: of params.y_fragments, which is 0 if not attends_in_fragments().
    void attention(Recorder& recorder, const AttentionParams& params, const AttentionShape& shape, ScalarType act_type,
                   uint32_t fragment_order = kFragmentsByColumns);
    // qkv_post and attention in one, for rows of which each is the only one of its sequence in the step, without
    // adapters. Rounds as both together do. Only where attends_from_qkv().
    // y_order: y in fragments instead (activation_fragments.h), without splits.
    void attention_from_qkv(Recorder& recorder, const AttentionFromQkvParams& params, const QkvShape& qkv,
                            const AttentionShape& shape, ScalarType act_type,
                            std::optional<uint32_t> y_order = std::nullopt);
    // The same for the rows of params.tiles; attention() with params.single_rows then computes the rest, beside it, and
    // with splits, which neither joins, attention_combine() joins the parts of all rows behind a barrier. Queries and
    // weights are rounded to f16. Grid: step_state[grid_offset].
    // Only where attends_by_tile().
    void attention_tiles(Recorder& recorder, const AttentionParams& params, const AttentionShape& shape,
                         ScalarType act_type, const Buffer& step_state, uint64_t grid_offset);
    void attention_combine(Recorder& recorder, AttentionParams params, const AttentionShape& shape,
                           ScalarType act_type);

  private:
    // attention.comp
    void attention_by_heads(Recorder& recorder, const AttentionParams& params, const AttentionShape& shape,
                            ScalarType act_type);
    // attention_group.comp and attention.comp, from sums; without joining parts.
    void group_attention_from_qkv(Recorder& recorder, const AttentionFromQkvParams& params, const QkvShape& qkv,
                                  const AttentionShape& shape, ScalarType act_type, std::optional<uint32_t> y_order);
    void heads_attention_from_sums(Recorder& recorder, const AttentionFromQkvParams& params, const QkvShape& qkv,
                                   const AttentionShape& shape, ScalarType act_type);
};

}  // namespace lorad::gpu
