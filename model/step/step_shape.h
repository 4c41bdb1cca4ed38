// Describes what a recording of a step depends on, with capacities in few sizes so that few recordings serve all steps,
// and the layout of a step's state.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "gpu/kernels/kernels.h"

namespace lorad::model {

// A step whose rules have masks is submitted in two parts, so that the masks may be made while the first one runs: the
// second begins with sample_draw or what comes before it for rules.
enum class StepPart : uint8_t { kWhole, kForward, kDraw };

// How the rows' adapters are added to the sums of the layers' products.
enum class AdapterMethod : uint8_t {
    kConsumers,     // the kernel that reads a product's sums adds it, row by row; also where no row has an adapter
    kFewRuns,       // the same, but the activation adds it on matrices: of few runs of rows with one adapter
    kLongRuns,      // the products add it where they can: of long runs of rows with one adapter
    kExpanded,      // a dispatch of its own behind each product: of few rows and many ranks
    kStacked,       // the products have the adapters as more k (StackedColumns)
    kGatedProduct,  // the product of gate and up shrinks and expands by itself; other products' consumers add theirs
};

// How the layers of a step are cut into dispatches.
enum class LayerSchedule : uint8_t {
    kSeparate,     // each operation has its own
    kOneDispatch,  // one row: all layers in one (DecodeLayers)
    kApart,        // one row behind a long context: attention apart, what lies between two attentions in one
    kBetween,      // the latter of a few rows (decode_rows, decode_bricks)
};

// Identifies a recording. Everything else of a step is in the step state.
struct StepShape {
    uint32_t row_bucket = 0;     // capacity for rows
    uint32_t output_bucket = 0;  // capacity for logit rows; 0: no row's next token is wanted
    uint32_t attention_splits = 1;
    gpu::LoraLevel lora = gpu::LoraLevel::kNone;
    AdapterMethod method = AdapterMethod::kConsumers;      // another one at level kPlain alone
    gpu::ScalarType stacked_type = gpu::ScalarType::kF32;  // of kStacked: of the weights
    LayerSchedule schedule = LayerSchedule::kSeparate;
    // of kOneDispatch, whose row has an adapter with matrices of the weights' type alone: that
    uint32_t lora_type = gpu::kAnyLoraType;
    bool extras = false;     // some row's adapter changes more than the linear modules: AdapterExtrasView
    uint8_t weight_set = 0;  // 0: the model's own weights; 1: the merged ones
    bool tiles = false;      // attention of long runs of rows by AttentionTile; the other rows are listed
    uint32_t tile_rows = gpu::kAttentionTileRows;  // the most of one tile: AttentionPlanner::attention_tile_rows
    uint32_t single_bucket = 0;                    // capacity for rows in no tile, where there are tiles
    uint32_t state_runs = 0;                       // capacity for StateRun, of models with recurrent state
    // layers of the window group (model/exec/kv_groups.h) have a header and rows of their own, with their own blocks
    bool window_rows = false;
    // each row is the only one of its sequence, and attention takes them from the sums of their product
    bool lone_rows = false;
    bool rules = false;           // some output's token is chosen by a ChoiceRule; then whether
    bool changes = false;         // some rule changes logits,
    bool logprobs = false;        // some rule wants log-probabilities
    bool logits_to_host = false;  // some output's logits are copied there, in steps that would not write them otherwise
    StepPart part = StepPart::kWhole;

    bool is_stacked() const { return method == AdapterMethod::kStacked; }
    bool has_adapters() const { return lora != gpu::LoraLevel::kNone; }
    // The level of adapters that the consumers of products still have to add.
    gpu::LoraLevel left_to_consumers() const {
        return method == AdapterMethod::kExpanded || is_stacked() ? gpu::LoraLevel::kNone : lora;
    }
    // Returns true if anybody reads more of the logits than the greatest of each row.
    bool needs_logits() const { return rules || extras || logits_to_host; }

    // The shape of the second part of a step in two parts.
    StepShape draw_part() const {
        return {.row_bucket = row_bucket,
                .output_bucket = output_bucket,
                .rules = true,
                .changes = changes,
                .logprobs = logprobs,
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
    uint64_t rows, logit_rows, rules, segments, uses, kept, kept_segments, stacked, stacked_windows, tiles, single_rows,
        state_runs, window_header, block_tables;
    uint32_t n_stacked_tiles;  // windows of a group

    uint64_t stacked_of(uint32_t group) const { return stacked + group * sizeof(gpu::StackedGroup); }
    uint64_t windows_of(uint32_t group) const {
        return stacked_windows + uint64_t{group} * n_stacked_tiles * sizeof(gpu::StackedWindow);
    }

    // Segments of a step: one for each row and use in the worst case.
    static uint32_t segments_max(const StepShape& shape);
    static uint32_t uses_max(const StepShape& shape);
    // Returns true if the last layer may go on with only the rows that have an output, where that saves much. Rows with
    // adapters then have their own header, rows and segments at `kept`; not beyond level kPlain, whose lists go by the
    // rows of the whole step.
    static bool may_keep_rows(const StepShape& shape);
    static uint32_t tiles_max(const StepShape& shape);
    static uint32_t stacked_tiles(const StepShape& shape);
};

constexpr uint32_t kListAlign = 16;  // of the rules' lists, behind the block tables

}  // namespace lorad::model
