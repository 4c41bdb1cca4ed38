// What a recording of a step depends on: capacities in few sizes, so that few recordings serve all steps; and where a step's state lies.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "gpu/kernels/kernels.h"

namespace lorad::model {

// A step whose rules have masks is submitted in two parts, so that the masks may be made while the first one runs: the second begins with
// sample_draw or what comes before it for rules.
enum class StepPart : uint8_t { kWhole, kForward, kDraw };

// What a recording depends on. Everything else of a step is in the step state.
struct StepShape {
    uint32_t row_bucket = 0;     // capacity for rows
    uint32_t output_bucket = 0;  // capacity for logit rows; 0: no row's next token is wanted
    uint32_t attention_splits = 1;
    gpu::LoraLevel lora = gpu::LoraLevel::kNone;
    bool extras = false;     // some row's adapter changes more than the linear modules: AdapterExtrasView
    uint8_t weight_set = 0;  // 0: the model's own weights; 1: the merged ones
    bool tiles = false;      // attention of long runs of rows by AttentionTile; the other rows are listed
    uint32_t tile_rows = gpu::kAttentionTileRows;  // the most of one tile: KernelSet::attention_tile_rows
    bool long_runs = false;  // of rows with one adapter, at level kPlain: products add the adapters' part where they can
    bool joined = false;     // at level kPlain: all products have the adapters as more k (JoinedColumns),
    gpu::ScalarType joined_type = gpu::ScalarType::kF32;  // and weights of this type
    bool few_runs = false;   // of rows with one adapter, where they are not long, and the step is neither joined, expanded nor gated_lora: the activation adds it on matrices, see has_few_runs() in executor_shapes.cpp
    bool expanded = false;   // few rows at level kPlain whose adapters' part a dispatch of its own adds to each product: KernelSet::lora_expand
    bool gated_lora = false; // at level kPlain: gate and up have their rows' adapters in their product, shrink and all
    uint32_t single_bucket = 0;  // capacity for rows in no tile, where there are tiles
    bool lone_rows = false;      // each row is the only one of its sequence, and attention takes them from the sums of their product
    bool rules = false;          // some output's token is chosen by a ChoiceRule; then whether
    bool changes = false;        // some rule changes logits,
    bool logprobs = false;       // some rule wants log-probabilities
    bool logits_to_host = false; // some output's logits are copied there, in steps that would not write them otherwise: Executor::Impl::takes_argmax()
    bool one_dispatch = false;   // all layers by DecodeLayers,
    uint32_t lora_type = gpu::kAnyLoraType;  // whose row has an adapter with matrices of the weights' type alone: that,
    bool apart = false;          // or what lies between the attentions of two layers, behind a long context
    bool between = false;        // the latter of a few rows, by DecodeRows
    StepPart part = StepPart::kWhole;

    // Whether anybody reads logits but for the greatest of each row.
    bool needs_logits() const { return rules || extras || logits_to_host; }

    // Of a step in two parts: what the second one depends on.
    StepShape draw_part() const {
        return {.row_bucket = row_bucket, .output_bucket = output_bucket, .rules = true, .changes = changes, .logprobs = logprobs,
                .part = StepPart::kDraw};
    }

    auto operator<=>(const StepShape&) const = default;
};

// Beyond that many tokens attention has dispatches of its own, which read the cache faster (docs/PERFORMANCE.md).
constexpr uint32_t kOneDispatchContextMax = 3072;

// Neighbouring rows of a sequence from which on they are worth a tile.
constexpr uint32_t kTileRowsMin = 4;

// The smallest bucket that holds n: 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, ... ; 0 for 0.
uint32_t bucket_for(uint32_t n);
// All buckets up to and including the one that holds n.
std::vector<uint32_t> buckets_up_to(uint32_t n);

// Byte offsets in the step-state buffer; they follow from the shape alone.
struct StepLayout {
    explicit StepLayout(const StepShape& shape);
    uint64_t rows, logit_rows, rules, segments, uses, kept, kept_segments, joined, joined_windows, tiles, single_rows, block_tables;
    uint32_t n_joined_tiles;  // windows of a group

    uint64_t joined_of(uint32_t group) const { return joined + group * sizeof(gpu::JoinedGroup); }
    uint64_t windows_of(uint32_t group) const { return joined_windows + uint64_t{group} * n_joined_tiles * sizeof(gpu::JoinedWindow); }

    // Segments of a step: one for each row and use in the worst case.
    static uint32_t segments_max(const StepShape& shape);
    static uint32_t uses_max(const StepShape& shape);
    // Whether the last layer may go on with those rows alone that have an output, where that saves much. Those with adapters have a header, rows and segments of their own
    // then, at `kept`; not beyond level kPlain, whose lists go by the rows of the whole step.
    static bool may_keep_rows(const StepShape& shape);
    static uint32_t tiles_max(const StepShape& shape);
    static uint32_t joined_tiles(const StepShape& shape);
};

constexpr uint32_t kListAlign = 16;  // of the rules' lists, behind the block tables

}  // namespace lorad::model
