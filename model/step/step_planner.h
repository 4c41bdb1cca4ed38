// Chooses a step's recording: the one place that decides how a batch is computed. Pure: the same answer for the same
// traits, without a device (gpu::KernelPlanner needs none). docs/ARCHITECTURE.md has a table of what steps run.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/kernels/kernels.h"
#include "model/config/config.h"
#include "model/config/topology.h"
#include "model/exec/persistent_programs.h"
#include "model/step/batch_traits.h"
#include "model/step/step_shape.h"
#include "model/weights/weights.h"

namespace lorad::model {

// Facts of the merged weights that a batch may run on.
struct MergedFacts {
    bool has_decode_table = false;
    bool has_gate_up_bias = false;
};

struct PlannerLimits {
    uint32_t n_rows_max = 0, n_outputs_max = 0, n_sequences_max = 0;
    uint32_t one_dispatch_context_max = kOneDispatchContextMax;
    bool waits_for_others = true;  // programs whose workgroups wait for one another are allowed
    bool window_rows = false;      // StepShape
};

class StepPlanner {
  public:
    // Only the sizes and types of `weights` count. All three outlive the planner.
    StepPlanner(const gpu::KernelPlanner& kernels, const ModelConfig& config, const ModelWeights& weights,
                const PlannerLimits& limits);

    // The traits that traits_of() has to find for a batch of so many rows.
    TraitsWish tile_request(uint32_t n_rows) const;
    StepShape shape_of(const BatchTraits& traits, ProgramSet programs, const MergedFacts& merged = {}) const;
    // The shapes of the most frequent batches: decodes of short texts and of texts of n_context_max tokens at every
    // number of sequences, and the end of a prompt at every size of chunk.
    std::vector<StepShape> usual_shapes(ProgramSet programs, uint32_t n_context_max) const;

    // Return true if a recording for so many rows can have AdapterMethod::kStacked, or kGatedProduct.
    bool stacks_adapters(uint32_t row_bucket) const;
    bool gates_adapters(uint32_t row_bucket) const;
    const std::vector<uint32_t>& gated_buckets() const { return gated_buckets_; }  // ascending
    // Returns true if the output layer of so many rows can leave out logits that nobody reads
    // (ProductResult::kGreatest).
    bool takes_argmax(uint32_t output_bucket) const;
    // Parts that a context is split into: a power of two, so that a growing context needs few recordings.
    uint32_t splits_for(uint32_t n_rows, uint32_t n_context) const;
    // The fewest KV heads of a layer, by which contexts are split.
    uint32_t kv_heads_min() const { return kv_heads_min_; }
    // The most query heads of a layer; where there are tiles, of all of them.
    uint32_t heads_max() const { return heads_max_; }
    gpu::ScalarType weight_type() const { return weights_.layers.front().qkv.type; }
    // The type of adapters for which LayerSchedule::kOneDispatch has a shorter program, as LoraModule::type: the
    // weights'.
    uint32_t decode_lora_type() const { return static_cast<uint32_t>(weight_type()); }

  private:
    void plan_attention(const BatchTraits& traits, StepShape& shape) const;
    void plan_schedule(const BatchTraits& traits, ProgramSet programs, const MergedFacts& merged,
                       StepShape& shape) const;
    AdapterMethod method_for(const BatchTraits& traits, ProgramSet programs, const StepShape& shape) const;
    bool stacking_pays(const BatchTraits& traits) const;
    bool products_add_runs(uint32_t rank_max, uint32_t row_bucket) const;
    bool gates_few_runs(uint32_t row_bucket) const;
    bool takes_lone_rows(const StepShape& shape) const;
    bool can_stack(uint32_t row_bucket) const;
    bool can_gate(uint32_t row_bucket) const;
    uint32_t tile_rows_for(uint32_t row_bucket) const;
    uint32_t decode_splits_for(uint32_t n_context) const;
    uint32_t tile_splits_for(const RowRuns& runs, uint32_t row_bucket, uint32_t n_context) const;
    class UsualBatches;

    const gpu::KernelPlanner& kernels_;
    const ModelConfig& config_;
    const ModelWeights& weights_;
    const PlannerLimits limits_;
    const ModelTopology topology_;
    std::vector<AttentionFacts> attentions_;  // that differ
    uint32_t kv_heads_min_ = 0, heads_max_ = 0;
    std::vector<uint32_t> stacked_buckets_, gated_buckets_;  // of rows, ascending
};

}  // namespace lorad::model
