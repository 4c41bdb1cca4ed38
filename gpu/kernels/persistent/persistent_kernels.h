// Programs whose workgroups run side by side and wait for one another: all layers of one row, and what lies between the
// attentions of two layers.
#pragma once

#include <cstdint>

#include "gpu/command.h"
#include "gpu/kernels/consumer_shape.h"
#include "gpu/kernels/kernel_cache.h"
#include "gpu/kernels/kernel_facts.h"
#include "gpu/kernels/persistent/decode_bricks.params.h"
#include "gpu/kernels/persistent/decode_layers.params.h"
#include "gpu/kernels/persistent/decode_rows.params.h"

namespace lorad::gpu {

// Parts of layers beside Llama's, or in their place; the same in all layers.
struct DecodeFamily {
    Activation activation = Activation::kSilu;
    bool norms_before = true, norms_after = false;  // of the inputs of qkv, gate and up; of what o and down give
    bool wide_qk_norms = false;                     // over all heads of a row
    bool by_layer = false;                          // rope and groups of blocks are each layer's own
    float softcap = 0.0f;                           // of scores; 0: not
    float multiplier = 1.0f;                        // on what o and down give
    // queries times 1 + beta ln(1 + floor(position / original)); 0: not
    float position_beta = 0.0f;
    uint32_t position_original = 1;
    bool operator==(const DecodeFamily&) const = default;
};

// Of a model whose layers are all alike.
struct DecodeLayersShape {
    ScalarType type = ScalarType::kF32;  // of all matrices
    uint32_t hidden = 0, n_q_heads = 0, n_kv_heads = 0, head_dim = 0, rotary_dim = 0, ffn = 0;
    // as in AttentionShape; of decode_behind: of the attention before it, which are not joined yet
    uint32_t n_splits = 1;
    bool lora = false;                  // the row has an adapter of at most kDecodeRankMax ranks; not for decode_behind
    uint32_t lora_type = kAnyLoraType;  // of all its matrices, as LoraModule::type: a shorter program, which is faster
    DecodeFamily family = {};

    bool has_families() const { return family != DecodeFamily(); }  // it takes the modules with FAMILIES
};

class PersistentPlanner : public Planner {
  public:
    explicit PersistentPlanner(const KernelFacts& facts) : Planner(facts) {}

    bool can_decode_layers(const DecodeLayersShape& shape) const;
    bool can_decode_rows(const DecodeRowsShape& shape) const;
    uint64_t decode_rows_sync_bytes(const DecodeRowsShape& shape) const;  // of DecodeRowsParams::sync
    bool can_decode_bricks(const DecodeBricksShape& shape) const;
    uint64_t decode_bricks_sync_bytes(const DecodeBricksShape& shape) const;  // of DecodeBricksParams::sync
    // Parts of a context of so many tokens: a power of two, and no more than all workgroups attend to at once.
    // shape.n_splits does not matter.
    uint32_t plan_decode_splits(const DecodeLayersShape& shape, uint32_t n_context) const;
    static uint64_t decode_channel_words(const DecodeLayersShape& shape, uint32_t n_splits_max);
};

enum class DecodeModule : uint8_t { kLayers, kLora, kBehind };

// Each method records one dispatch unless it says otherwise. Several threads may record at once, each into its own
// Recorder.
class PersistentKernels : public PersistentPlanner, private KernelRecorder {
  public:
    PersistentKernels(const KernelFacts& facts, KernelCache& cache) : PersistentPlanner(facts), KernelRecorder(cache) {}

    // All layers of a step of one row: see decode_layers.comp. Workgroups wait for each other, so the first use on
    // a device is a trial (Executor::load), and params.given_up is to be read after each step.
    void decode_layers(Recorder& recorder, DecodeLayersParams params, const DecodeLayersShape& shape);
    // The same of what lies between the attentions of two layers: the first from o on, q, k and v of the second.
    // attention_type: of the input.
    void decode_behind(Recorder& recorder, DecodeBehindParams params, const DecodeLayersShape& shape,
                       ScalarType attention_type);
    // What lies between the attentions of two layers, for 2 to kDecodeRowsMax rows without adapters: see
    // decode_rows_text.h. Workgroups wait for each other here, too:
    // its first use is a trial likewise.
    void decode_rows(Recorder& recorder, DecodeRowsParams params, const DecodeRowsShape& shape);
    // The same for 1 to kDecodeRowsMax rows of packed matrices: see decode_bricks_text.h. A trial likewise.
    void decode_bricks(Recorder& recorder, DecodeBricksParams params, const DecodeBricksShape& shape);

  private:
    const Kernel* decode_kernel(DecodeModule module, const DecodeLayersShape& shape, uint32_t other_type);
};

}  // namespace lorad::gpu
