// The transformer's forward pass, recorded once per shape of step and replayed: see forward.cpp for the pass itself.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "gpu/command.h"
#include "gpu/device.h"
#include "gpu/kernels/kernels.h"
#include "model/config.h"
#include "model/decode_layers.h"
#include "model/kv_cache.h"
#include "model/lora_table.h"
#include "model/weight_transform.h"
#include "model/weights.h"
#include "proto/base/result.h"

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
    bool long_runs = false;  // of rows with one adapter, at level kPlain: products add the adapters' part where they can
    uint32_t single_bucket = 0;  // capacity for rows in no tile, where there are tiles
    bool rules = false;          // some output's token is chosen by a ChoiceRule; then whether
    bool changes = false;        // some rule changes logits,
    bool logprobs = false;       // some rule wants log-probabilities
    bool one_dispatch = false;   // all layers by DecodeLayers
    StepPart part = StepPart::kWhole;

    // Of a step in two parts: what the second one depends on.
    StepShape draw_part() const {
        return {.row_bucket = row_bucket, .output_bucket = output_bucket, .rules = true, .changes = changes, .logprobs = logprobs,
                .part = StepPart::kDraw};
    }

    auto operator<=>(const StepShape&) const = default;
};

// Neighbouring rows of a sequence from which on they are worth a tile.
constexpr uint32_t kTileRowsMin = 4;

// The smallest bucket that holds n: 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, ... ; 0 for 0.
uint32_t bucket_for(uint32_t n);
// All buckets up to and including the one that holds n.
std::vector<uint32_t> buckets_up_to(uint32_t n);

// Byte offsets in the step-state buffer; they follow from the shape alone.
struct StepLayout {
    explicit StepLayout(const StepShape& shape);
    uint64_t rows, logit_rows, rules, segments, uses, tiles, single_rows, block_tables;

    // Segments of a step: one for each row and use in the worst case.
    static uint32_t segments_max(const StepShape& shape);
    static uint32_t uses_max(const StepShape& shape);
    static uint32_t tiles_max(const StepShape& shape);
};

constexpr uint32_t kListAlign = 16;  // of the rules' lists, behind the block tables

struct ForwardLimits {
    uint32_t n_rows_max = 0;
    uint32_t n_outputs_max = 0;
    uint32_t n_sequences_max = 0;
    uint32_t n_positions_max = 0;

    uint64_t n_table_entries_max() const { return uint64_t{n_sequences_max} * blocks_for_tokens(n_positions_max); }
};

// Device memory that one step works in; steps take turns in it.
struct Scratch {
    gpu::Buffer step_state;
    gpu::Buffer x;          // [rows][H] f32, the residual stream
    gpu::Buffer xn;         // [rows][H] normed, in the next matmul's input type
    gpu::Buffer y;          // [splits][rows][n] f32, result of the last matmul
    gpu::Buffer q;          // [rows][Q D] f32
    gpu::Buffer attention;  // [rows][Q D], input of o
    gpu::Buffer act;        // [rows][F], input of down
    gpu::Buffer low;        // shrink results
    gpu::Buffer attention_partials;
    gpu::Buffer output_xn;  // [outputs][H] final norm of the rows whose next token is wanted
    gpu::Buffer logits;     // [outputs][V] f32
    gpu::Buffer sample_partials;
    gpu::Buffer sampled;    // i32[outputs], read by the next step's embed
    gpu::Buffer results;    // SampleResult[outputs]
    gpu::Buffer logprobs;   // ChoiceLogprobs[outputs]
    gpu::Buffer masks;      // u32[n_sequences_max][mask_words(V)]
};

// Of a mask: a bit for each token.
constexpr uint32_t mask_words(uint32_t vocab_size) { return (vocab_size + 31) / 32; }

constexpr uint64_t kStepStateBytesMin = 1024;  // smallest size class in which a step's state is copied

// Bytes of each of the above, in that order; their sum goes into the memory plan.
struct ScratchBytes {
    uint64_t step_state, x, xn, y, q, attention, act, low, attention_partials, output_xn, logits, sample_partials, sampled, results, logprobs, masks;
    uint64_t sum() const;
};
ScratchBytes scratch_bytes(const gpu::KernelSet& kernels, const ModelConfig& config, const ModelWeights& shapes,
                           const ForwardLimits& limits);
Result<Scratch> create_scratch(gpu::Device& device, const ScratchBytes& bytes);

// Everything a recording refers to; all of it outlives the recordings.
struct ForwardContext {
    gpu::KernelSet& kernels;
    const ModelConfig& config;
    const ModelWeights& weights;
    const MergedWeights* merged;  // of weight set 1
    const KvCache& kv_cache;
    const Scratch& scratch;
    const LoraTable& lora_table;
    gpu::DeviceAddress rope_table;
    gpu::DeviceAddress host_logits;  // [readback][V] f32
    const DecodeLayers* decode_layers;  // of shapes with one_dispatch
};

// Records one step of this shape. The step state must be in place before it runs; results are in scratch.results after it.
Status record_forward(gpu::Recorder& recorder, const ForwardContext& context, const StepShape& shape);

}  // namespace lorad::model
