// Every kernel of the forward pass, as methods that record one dispatch each.
//
// Letters: T rows of the step, H hidden, Q/K query and KV heads, D head dim, F ffn, V vocabulary, S splits of a matmul.
// Rows of all buffers are the step's rows unless said otherwise. Kernels read the true row count from device memory and
// leave rows beyond it alone; `rows` below is the capacity that the recording is made for (the row bucket). A recording for
// one row takes its row as given.
// Weights, LoRA A and B keep the type of their file; norm weights and biases are f32. Matrices are [n_padded][k_stride],
// n_padded = n rounded up to 64, k_stride = k rounded up to 64, padding zero. A row of activations is as long as k_stride of
// the matrix that reads it, its padding zero; activation buffers have kSlackRows rows behind the bucket, whose content never
// matters but must be readable.
// Sums run in a fixed order with explicit fma and without atomics: within one variant a row's bits do not depend on the
// other rows or on their number.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/buffer.h"
#include "gpu/command.h"
#include "gpu/device.h"
#include "gpu/kernels/add_norm.params.h"
#include "gpu/kernels/arrange_blocks.params.h"
#include "gpu/kernels/attention.params.h"
#include "gpu/kernels/attention_from_qkv.params.h"
#include "gpu/kernels/copy_words.params.h"
#include "gpu/kernels/decode_layers.params.h"
#include "gpu/kernels/decode_rows.params.h"
#include "gpu/kernels/embed.params.h"
#include "gpu/kernels/extras.params.h"
#include "gpu/kernels/gated_act.params.h"
#include "gpu/kernels/gated_lora.params.h"
#include "gpu/kernels/gather_rows.params.h"
#include "gpu/kernels/kernel_ladder.h"
#include "gpu/kernels/kv_format.h"
#include "gpu/kernels/lora_expand.params.h"
#include "gpu/kernels/lora_join.params.h"
#include "gpu/kernels/lora_shrink.params.h"
#include "gpu/kernels/lora_vector.params.h"
#include "gpu/kernels/matmul.params.h"
#include "gpu/kernels/matmul_plan.h"
#include "gpu/kernels/matmul_residual.params.h"
#include "gpu/kernels/merge_weights.params.h"
#include "gpu/kernels/qkv_post.params.h"
#include "gpu/kernels/read_stream.params.h"
#include "gpu/kernels/rms_norm.params.h"
#include "gpu/kernels/row_normalize.params.h"
#include "gpu/kernels/sample_argmax.params.h"
#include "gpu/kernels/sample_choice.params.h"
#include "gpu/kernels/step_state.h"
#include "gpu/pipeline.h"
#include "proto/base/result.h"
#include "proto/base/rounding.h"

namespace lorad::gpu {

inline constexpr uint32_t kSlackRows = 192;    // no row tile is larger; behind every activation and matmul result buffer
inline constexpr uint32_t kAttentionSplitsMax = 128;
inline constexpr uint32_t kGroupedHeadsMax = 16;  // query heads of a KV head that attention on matrices takes together
inline constexpr uint32_t kWeightAlign = 64;   // of n_padded and k_stride, elements

constexpr uint32_t padded(uint32_t elements) { return round_up(elements, kWeightAlign); }

enum class Activation : uint32_t { kSilu = 0, kGeluTanh = 1 };

enum class RowOperation : uint32_t { kSoftmax = 0, kLayerNorm = 1, kRmsNorm = 2 };
// Who computes A x in lora_vector: the workgroups together, each one all of it, or what is faster.
enum class LowSharing : uint32_t { kAuto, kAlways, kNever };

// To compare; 0: what is best for the size.
struct LoraVectorOptions {
    LowSharing sharing = LowSharing::kAuto;  // kAlways: where the device has 64-bit atomics
    uint32_t threads = 0;     // of a workgroup, a power of two; as many as the device takes, and no fewer than a subgroup has
    uint32_t group_rows = 0;  // of a workgroup, a power of two from 2 on and no more than threads
    uint32_t slices = 0;      // of k, a power of two and no more than subgroups, joined through shared memory
    uint32_t at_once = 0;     // units (one chunk of 8 weights for each lane) that a subgroup asks for before it uses them
};

// Whether a step of one row runs its layers in one dispatch: kAuto where that is known to pay.
enum class PersistentDecode : uint32_t { kAuto, kOff, kOn };

// How attention of tiles of rows is computed: on KHR matrices with scores through shared memory, on NV matrices 2 of a whole workgroup, or on KHR matrices
// whose elements are where NVIDIA's devices have them, with scores in registers.
enum class TileAttention : uint32_t { kAuto, kStaged, kWorkgroup, kRegisters };

// Whether gate_up computes the activation itself: kAuto where that is faster.
enum class GatedProducts : uint32_t { kAuto, kNever, kAlways };

struct KernelSetOptions {
    KernelPath path = KernelPath::kAuto;
    bool batch_invariant = false;  // one matmul variant, one attention and one shrink variant for all row counts
    KvType kv_type = KvType::kF16;  // of the caches that qkv_post writes and attention reads; kInt8Values: some layers' are that, the others' kInt8
    PersistentDecode decode = PersistentDecode::kAuto;
    uint32_t decode_workgroups = 0;  // of that dispatch, all at work at once; 0: one for each multiprocessor
    std::vector<std::string> left_out = {};  // modules whose kernels are not used, where there are others: the driver does not make them
    // To compare, in benchmarks and tests.
    bool lora_on_matrices = true;  // shrink, and gated_act with adapters, by cooperative matrices where that is possible and rows are many
    GatedProducts gated = GatedProducts::kAuto;  // kAlways: wherever it is possible
    TileAttention tile_attention = TileAttention::kAuto;
    uint32_t attention_tile_rows = 0;  // of TileAttention::kRegisters: 64 or 128; 0: what is best for the step
    uint32_t attention_heads = 0;  // query heads of a workgroup of attention, a divisor of the group, and none on matrices; 0: what is best for the step
    uint32_t expand_rows = 8;      // rows of gated_act side by side in a workgroup where rows are many: 1, 2, 4, 8 or 16
    std::vector<std::string> refused = {};  // for tests: modules that are not made any more behind the tests at the start, as if the driver refused them
    // With which the kernels of attention are tested at the start: the model's head sizes, and query heads of a KV head.
    std::vector<uint32_t> head_dims = {64, 128};
    uint32_t head_group = 2;

    // The group that tests at the start take: one that attention on matrices can take.
    uint32_t tested_group() const { return std::clamp(head_group, 2u, kGroupedHeadsMax); }
};

// How much of LoRA a recording can do.
enum class LoraLevel : uint32_t {
    kNone = 0,   // no row has an adapter: no LoRA kernel runs
    kPlain = 1,  // a row has at most one, with the request's scale 1 and neither gain nor bias; its shrink result is low row t
    kFull = 2,   // several for each row, scales, gains, biases
};

inline constexpr uint32_t kAdapterTileRows = 32;  // of gated_act_matrix

// Where a shrink is recorded. First: with a barrier behind it, or before a product of many more workgroups than run at once, behind which it would begin late.
// Behind any other product: its workgroups find room beside those that are at work, but these would end later if they had to find it beside a shrink's.
enum class ShrinkPlace : uint32_t { kFirst, kBehindProduct };
constexpr ShrinkPlace shrink_place(const MatmulPlan& product) {
    return product.variant == MatmulVariant::kGemv || product.variant == MatmulVariant::kMatvec ? ShrinkPlace::kFirst : ShrinkPlace::kBehindProduct;
}

// What the LoRA part of a consumer kernel needs to know when the recording is made.
struct ConsumerShape {
    uint32_t rows = 0;
    uint32_t n_splits = 1;  // of the matmul whose result is consumed
    LoraLevel lora = LoraLevel::kNone;
    bool few_runs = false;  // of rows with one adapter, in every kAdapterTileRows; at level kPlain
    uint32_t whole_rows = 0;  // as in the matmul's plan
};

struct QkvShape {
    ConsumerShape base;
    uint32_t n_q_heads = 0, n_kv_heads = 0, head_dim = 0, rotary_dim = 0;  // rotary_dim even, <= head_dim
    bool keys_f16 = false;  // the layer's cache is KvType::kInt8Values
};

struct AttentionShape {
    uint32_t rows = 0;
    uint32_t n_q_heads = 0, n_kv_heads = 0, head_dim = 0;
    uint32_t n_splits = 1;  // > 1: the context is cut into that many pieces, at most kAttentionSplitsMax
    bool joined = true;     // by a second dispatch; otherwise the pieces stay in params.partials
    bool keys_f16 = false;  // the layer's cache is KvType::kInt8Values
};

// Of a model whose layers are all alike.
struct DecodeLayersShape {
    ScalarType type = ScalarType::kF32;  // of all matrices
    uint32_t hidden = 0, n_q_heads = 0, n_kv_heads = 0, head_dim = 0, rotary_dim = 0, ffn = 0;
    uint32_t n_splits = 1;  // as in AttentionShape; of decode_behind: of the attention before it, which are not joined yet
    bool lora = false;      // the row has an adapter of at most kDecodeRankMax ranks; not for decode_behind
    uint32_t lora_type = kAnyLoraType;  // of all its matrices, as LoraModule::type: a shorter program, which is faster
};

// Several threads may record at once, each into its own Recorder.
class KernelSet {
  public:
    // Shows by small products that the fast kernels are right on this device, about a second without a pipeline cache; those
    // that are not are left out with a warning. kInvalidConfig if the device lacks the path that was asked for.
    static Result<std::unique_ptr<KernelSet>> create(Device& device, const KernelSetOptions& options);
    ~KernelSet();

    // What kept a kernel from being made, and so recorded, in this thread's recordings since the last call: check after each. kKernelRefused: the
    // driver will not take it; kOutOfMemory: it may be made the next time.
    Status status();
    // Modules of kernels that could not be made behind the tests at the start, for this reason, and that there are others for (KernelSetOptions::left_out).
    std::vector<std::string> replaceable_failures(ErrorCode code) const;
    bool has_failures(ErrorCode code) const;  // of any kernel, likewise. Both: any thread
    const KernelSetOptions& options() const { return options_; }  // path is never kAuto here

    // The type in which rms_norm, attention, add_norm and gated_act write what a matmul with these weights reads.
    ScalarType act_type(ScalarType weight_type) const;
    // How to multiply by an n x k matrix with this row bucket; pure, cheap, the same answer every time. Where x may be in blocks, as AddNormParams::xn_blocks,
    // GatedActParams::act_blocks and MatmulParams::y_blocks, the plan says whether it is to be, and in which order: who writes it is told as block_order.
    // adds_adapters: only plans for which adds_adapters() holds, where there are any. leaves_room: a shrink is to run beside it.
    MatmulPlan plan_matmul(uint32_t n, uint32_t k, ScalarType weight_type, uint32_t rows, uint32_t max_splits, bool may_be_in_blocks = false,
                           bool adds_adapters = false, bool leaves_room = false) const;
    // All plans that could serve, for benchmarks.
    std::vector<MatmulPlan> matmul_candidates(uint32_t n, uint32_t k, ScalarType type, uint32_t rows, uint32_t max_splits) const;
    // Splits that pay for attention over contexts up to max_context; 1 with batch_invariant.
    uint32_t plan_attention_splits(uint32_t rows, uint32_t n_kv_heads, uint32_t max_context) const;
    // The same for attention_tiles.
    uint32_t plan_tile_splits(uint32_t n_tiles, uint32_t n_q_heads, uint32_t max_context) const;
    // The most that a step with this row bucket may have, for its tiles or the rows outside of them: what the memory of partial results is for.
    uint32_t attention_splits_max(uint32_t row_bucket, uint32_t n_kv_heads, uint32_t max_context) const;

    // x[t] = table[token[t]] * scale. Moves 2-4 H bytes in, 4 H out, per row.
    void embed(Recorder& recorder, const EmbedParams& params, ScalarType table_type, uint32_t rows);

    // y[t] = x[row] * rsqrt(mean(x[row]^2) + eps) * gamma. Moves 4 H in, 2-4 H out, per row.
    void rms_norm(Recorder& recorder, const RmsNormParams& params, ScalarType act_type, uint32_t rows, uint32_t block_order = kBlocksByColumns);

    // y[s][t][n] = sum over split s of x[t][k] * w[n][k]. Moves the matrix once (matvec: once per 8 rows).
    // params.k_per_split is filled in from the plan. `ahead` is asked for by kWarpgroupDirect alone.
    void matmul(Recorder& recorder, MatmulParams params, const MatmulPlan& plan, const PagesAhead& ahead = {});

    // The same with what the rows' adapters add, at LoraLevel::kPlain; the group's shrink is complete. For long runs of rows with
    // one adapter. Only where adds_adapters(plan).
    void matmul_with_adapters(Recorder& recorder, MatmulLoraParams params, const MatmulPlan& plan);
    bool adds_adapters(const MatmulPlan& plan) const;

    // act[t][f] = activation(gate) * up from the product itself: w has rows gate 0..n-1 and up n..2n-1 without bias, params.n is n, params.y is
    // act, or y_blocks, and params.y_stride its stride; MatmulLoraParams::module_end is not read. Moves 2 n bytes out per row where matmul and gated_act move 8 n
    // out and in. Only with a plan of plan_gated(): none where the two are faster, or where the device cannot.
    std::optional<MatmulPlan> plan_gated(uint32_t ffn, uint32_t k, ScalarType weight_type, uint32_t rows, uint32_t max_splits,
                                         bool may_be_in_blocks = false, bool adds_adapters = false) const;
    // One whose x may be in blocks may also have a plan by warpgroups, which writes y_blocks alone and knows no other activation than SiLU.
    // y_order: of y_blocks.
    void matmul_gated(Recorder& recorder, MatmulParams params, const MatmulPlan& plan, Activation activation, uint32_t y_order = kBlocksByColumns);
    void matmul_gated_with_adapters(Recorder& recorder, MatmulLoraParams params, const MatmulPlan& plan, Activation activation,
                                    uint32_t y_order = kBlocksByColumns);
    bool adds_adapters_gated(const MatmulPlan& plan) const;
    // The same with the shrink in it, too, for rows of any adapters of up to kGatedLoraRanks ranks and of the weights' type; y is written as well as y_blocks if it is not 0. Workgroups
    // wait for each other. Only with plans for which gates_lora().
    void matmul_gated_lora(Recorder& recorder, GatedLoraParams params, const MatmulPlan& plan, uint32_t y_order);
    bool gates_lora(const MatmulPlan& plan, uint32_t ffn, uint32_t k) const;

    // stream[t] += bias + x[t] . w^T, and xn as deferred_norm.h has it for the norm that follows, in one dispatch instead of a product and add_norm: for 2 to
    // kDeferredRows rows without adapters. w is n x k. Moves the matrix once. None where the device cannot, or no tile of columns divides n.
    std::optional<ResidualPlan> plan_residual(uint32_t n, uint32_t k, ScalarType weight_type, uint32_t rows) const;
    std::vector<ResidualPlan> residual_candidates(uint32_t n, uint32_t k, ScalarType weight_type, uint32_t rows) const;  // all that could serve, for benchmarks
    void matmul_residual(Recorder& recorder, const MatmulResidualParams& params, const ResidualPlan& plan);
    // matmul and matmul_gated of what that has written, n_tiles as in its plan. Only with plans for which may_follow_residual().
    void matmul_deferred(Recorder& recorder, MatmulDeferredParams params, const MatmulPlan& plan, uint32_t n_tiles);
    void matmul_gated_deferred(Recorder& recorder, MatmulDeferredParams params, const MatmulPlan& plan, uint32_t n_tiles, Activation activation);
    bool may_follow_residual(const MatmulPlan& plan) const;

    // low[i][m][r] = A_m(slot)[r] . x[t] for the modules of one group and the segments' rows, i the row that the segment gives
    // for t; r up to the rank rounded up to 8 is written. May run beside the group's matmul, before or behind which it is recorded: see ShrinkPlace.
    // step_state[dispatch_offset]: the group's ShrinkDispatch.
    void lora_shrink(Recorder& recorder, LoraShrinkParams params, ScalarType act_type, uint32_t rows, ShrinkPlace place,
                     const Buffer& step_state, uint64_t dispatch_offset);
    // Whether that runs on cooperative matrices; sums are added in another order then.
    bool shrinks_by_matrix(ScalarType act_type, uint32_t rows) const;

    // y[t][n] += scale * B_m(slot)[n] . low[t][m] for the modules of one group and the segments' rows, at LoraLevel::kPlain, in place: y is the first
    // split of the group's product, which is complete, as is its shrink. Its consumers then have LoraLevel::kNone.
    void lora_expand(Recorder& recorder, const LoraExpandParams& params);
    // Whether that pays in recordings of so many rows, with adapters of which the largest has rank_max ranks: it is a dispatch more.
    bool expands_apart(uint32_t rank_max, uint32_t rows) const;
    // Whether the products of such a step of long runs of rows with one adapter, which find no room as joined ones, are better left without the adapters' part, which
    // their consumers then add row by row as in other steps: by warpgroups they are so much faster that with few ranks it pays.
    bool consumers_add_long_runs(uint32_t rank_max, uint32_t rows, ScalarType weight_type) const;

    // The adapters of a step as more k of its products (JoinedGroup): lora_join puts their B side by side, beside a lora_shrink with params.joined; behind a barrier
    // the product has both, as matmul_with_adapters() and matmul_gated_with_adapters() do, at LoraLevel::kPlain. For rows of few adapters in each kJoinedTileRows.
    // Only with plans for which joins_adapters().
    bool joins_adapters(const MatmulPlan& plan) const;
    void lora_join(Recorder& recorder, const LoraJoinParams& params, ScalarType weight_type);
    void matmul_joined(Recorder& recorder, const MatmulJoinedParams& params, const MatmulPlan& plan, uint32_t n_modules);
    void matmul_gated_joined(Recorder& recorder, const MatmulJoinedParams& params, const MatmulPlan& plan, uint32_t n_modules, uint32_t y_order);

    // v = sum over splits + bias + LoRA; q and k: optional RMS norm per head, rotate-half rope on the first rotary_dim;
    // q -> f32, k and v -> the cache's type at the row's kv_slot. Moves 4 S (Q + 2K) D in, 4 Q D + 4 K D out, per row.
    void qkv_post(Recorder& recorder, const QkvPostParams& params, const QkvShape& shape);

    // y[t][h] = softmax(scale * q . K) V over the row's own sequence, positions 0..p within the window. All K and V of this
    // step must be in the cache. With splits that are joined this records two dispatches and the barrier between them.
    // block_order: of params.y_blocks, which is 0 if not attends_in_blocks().
    void attention(Recorder& recorder, const AttentionParams& params, const AttentionShape& shape, ScalarType act_type, uint32_t block_order = kBlocksByColumns);
    bool attends_in_blocks(const AttentionShape& shape, ScalarType act_type) const;

    // qkv_post and attention in one, for rows of which each is the only one of its sequence in the step, without adapters. Rounds as both
    // together do. Only where attends_from_qkv().
    // y_order: y in blocks instead (activation_blocks.h), without splits.
    void attention_from_qkv(Recorder& recorder, const AttentionFromQkvParams& params, const QkvShape& qkv, const AttentionShape& shape,
                            ScalarType act_type, std::optional<uint32_t> y_order = std::nullopt);
    bool attends_from_qkv(const QkvShape& qkv, const AttentionShape& shape) const;

    // The same for the rows of params.tiles; attention() with params.single_rows then computes the rest, beside it, and with splits, which
    // neither joins, attention_combine() joins the parts of all rows behind a barrier. Queries and weights are rounded to f16. Grid: step_state[grid_offset].
    // Only where attends_by_tile().
    void attention_tiles(Recorder& recorder, const AttentionParams& params, const AttentionShape& shape, ScalarType act_type,
                         const Buffer& step_state, uint64_t grid_offset);
    bool attends_by_tile(uint32_t head_dim) const { return tile_attention(head_dim) != TileAttention::kAuto; }
    // Which of them; kAuto: none.
    TileAttention tile_attention(uint32_t head_dim) const;
    // The most rows of a tile in a step of up to `rows`, which AttentionShape says to attention_tiles().
    uint32_t attention_tile_rows(uint32_t head_dim, uint32_t rows) const;
    // Whether attention() takes all query heads of a KV head together, on matrices: queries and weights are rounded to f16 then.
    bool groups_heads(const AttentionShape& shape) const;
    void attention_combine(Recorder& recorder, AttentionParams params, const AttentionShape& shape, ScalarType act_type);

    // x[t] += sum over splits + bias + LoRA; xn[t] = rms_norm(x[t]) * gamma. Moves 4 (S + 1) H in, 4-8 H out, per row.
    void add_norm(Recorder& recorder, const AddNormParams& params, const ConsumerShape& shape, ScalarType act_type, uint32_t block_order = kBlocksByColumns);

    // act[t][f] = activation(gate) * up, each with splits, bias and LoRA. Moves 8 S F in, 2-4 F out, per row.
    void gated_act(Recorder& recorder, const GatedActParams& params, const ConsumerShape& shape, Activation activation,
                   ScalarType act_type, uint32_t block_order = kBlocksByColumns);
    // Whether that is done on matrices, which adds what adapters add in another order.
    bool gates_by_matrix(const GatedActParams& params, const ConsumerShape& shape, ScalarType act_type) const;

    // All layers of a step of one row: see decode_layers.comp. Workgroups wait for each other, so the first use on
    // a device is a trial (Executor::load), and params.given_up is to be read after each step.
    void decode_layers(Recorder& recorder, DecodeLayersParams params, const DecodeLayersShape& shape);
    // The same of what lies between the attentions of two layers: the first from o on, q, k and v of the second. attention_type: of the input.
    void decode_behind(Recorder& recorder, DecodeBehindParams params, const DecodeLayersShape& shape, ScalarType attention_type);
    bool can_decode_layers(const DecodeLayersShape& shape) const;
    // What lies between the attentions of two layers, for 2 to kDecodeRowsMax rows without adapters: see decode_rows_text.h. Workgroups wait for each other here, too:
    // its first use is a trial likewise.
    void decode_rows(Recorder& recorder, DecodeRowsParams params, const DecodeRowsShape& shape);
    bool can_decode_rows(const DecodeRowsShape& shape) const;
    uint64_t decode_rows_sync_bytes(const DecodeRowsShape& shape) const;  // of DecodeRowsParams::sync
    // Parts of a context of so many tokens: a power of two, and no more than all workgroups attend to at once. shape.n_splits does not matter.
    uint32_t plan_decode_splits(const DecodeLayersShape& shape, uint32_t n_context) const;

    // to[t] = from[row of logit row t]. Moves the rows in and out.
    void gather_rows(Recorder& recorder, const GatherRowsParams& params, uint32_t rows);

    // blocks = rows, for a product whose input was written in rows; not kBlocksOfARow. Moves the rows in and out.
    void arrange_blocks(Recorder& recorder, const ArrangeBlocksParams& params, uint32_t rows, uint32_t block_order);

    // to = from, a multiple of 16 bytes; either may lie in host memory.
    void copy_words(Recorder& recorder, DeviceAddress from, DeviceAddress to, uint64_t n_bytes);

    // Per logit row: argmax, max, log-sum-exp; copies the row to the host where asked. logit_rows: capacity.
    // Records two dispatches and the barrier between them.
    void sample_argmax(Recorder& recorder, SampleArgmaxParams params, uint32_t logit_rows);

    // The same from the product of the output layer, where nobody else reads the logits: params.y is not written, params.n is the vocabulary. Only with plans of
    // plan_argmax(): none where it does not pay, or the device cannot; no row's logits are copied. Behind matmul_argmax and a barrier comes
    // sample_join, which reads partials and n_logit_rows and writes sampled and results.
    std::optional<MatmulPlan> plan_argmax(uint32_t n, uint32_t k, ScalarType weight_type, uint32_t rows) const;
    void matmul_argmax(Recorder& recorder, MatmulArgmaxParams params, const MatmulPlan& plan);
    static uint32_t argmax_parts(const MatmulPlan& plan, uint32_t n) { return ceil_div(n, plan.column_tile); }
    void sample_join(Recorder& recorder, SampleArgmaxParams params, uint32_t n_parts, uint32_t logit_rows);

    // For steps whose outputs have rules (choice_rule.h). Where some have changes: sample_last_tokens before anything overwrites
    // params.sampled; after sample_argmax sample_changes, sample_draw, and sample_changes once more to undo them; then sample_logprobs where they
    // are wanted; barriers between all of them. params.masks is to be there when sample_draw runs. sample_draw reads a drawn row 4 to 14 times, sample_logprobs a row 7 times.
    void sample_last_tokens(Recorder& recorder, const SampleChoiceParams& params, uint32_t logit_rows);
    void sample_changes(Recorder& recorder, const SampleChoiceParams& params, uint32_t logit_rows, bool undo);
    void sample_logprobs(Recorder& recorder, const SampleChoiceParams& params, uint32_t logit_rows);
    void sample_draw(Recorder& recorder, const SampleChoiceParams& params, uint32_t logit_rows);

    // As embed, for steps with adapters that change the embedding.
    void embed_extras(Recorder& recorder, const EmbedExtrasParams& params, ScalarType table_type, uint32_t rows);
    // After the base's output layer: what adapters put in the place of its logits, and what they add to them. Several dispatches
    // with a barrier between them. Moves an adapter's own output layer once per 4 neighbouring rows.
    void head_extras(Recorder& recorder, const HeadExtrasParams& params, ScalarType act_type, uint32_t logit_rows);
    static uint64_t head_low_bytes(uint32_t logit_rows) { return uint64_t{logit_rows} * kStepUsesMax * kMaxRank * sizeof(float); }

    // to = W with up to kMergeParts adapters in it; W is only read. Moves W once in, once out. For loading threads.
    void merge_weights(Recorder& recorder, const MergeWeightsParams& params, ScalarType weight_type);
    // The same for a range of a bias vector.
    void merge_bias(Recorder& recorder, const MergeWeightsParams& params);
    // DoRA: magnitudes -> gains, in place. Moves W once.
    void weight_norm(Recorder& recorder, const WeightNormParams& params, ScalarType weight_type);

    // y = W x + scale * B (A x) for one row of one adapter, in one dispatch. Moves W, A and B once.
    void lora_vector(Recorder& recorder, const LoraVectorParams& params, ScalarType weight_type, ScalarType act_type,
                     const LoraVectorOptions& options = {});
    // Softmax, layer norm or RMS norm of each row, one type in and out. Moves the rows in and out. row_threads, to compare: a power of
    // two of threads for a row, a subgroup at least; 0: what is best for the size.
    void row_normalize(Recorder& recorder, RowOperation operation, const RowNormalizeParams& params, ScalarType type, uint32_t rows,
                       uint32_t row_threads = 0);
    // Reads memory and keeps nothing: the ceiling that benchmarks divide by. loads: 16-byte words of a thread in flight.
    void read_stream(Recorder& recorder, const ReadStreamParams& params, uint32_t loads);

    // With this of kWarpgroupTiles; for tests.
    static MatmulPlan plan_of_warpgroup(uint32_t tile, uint32_t rows, uint32_t n_splits, uint32_t k_per_split, ScalarType type);
    // With so many blocks of 16 rows of w for each workgroup; for tests.
    static MatmulPlan plan_of_direct(uint32_t column_blocks, uint32_t rows, uint32_t n_splits, uint32_t k_per_split, ScalarType type);

    // Bytes of scratch that the kernels above need.
    static uint64_t attention_partial_bytes(const AttentionShape& shape);
    static uint64_t sample_partial_bytes(uint32_t logit_rows);
    static uint64_t decode_channel_words(const DecodeLayersShape& shape, uint32_t n_splits_max);
    // LoraShrinkParams::parts; zeroed before the first dispatch.
    static constexpr uint64_t kShrinkPartBytes = uint64_t{kShrinkAllPartsMax} * (16 * 16 + 1) * sizeof(float);
    // Of MatmulJoinedParams: low for so many rows, and b for a product with so many padded columns.
    static uint64_t joined_low_bytes(uint32_t rows, uint32_t n_modules) { return uint64_t{round_up(rows, kJoinedTileRows)} * n_modules * kJoinedModuleColumns * 2; }
    static uint64_t joined_b_bytes(uint32_t n_padded, uint32_t n_modules) { return uint64_t{n_padded} * n_modules * kJoinedModuleColumns * 2; }
    static uint64_t lora_low_bytes(uint32_t low_rows) { return uint64_t{low_rows} * 3 * kMaxRank * sizeof(float); }

  private:
    struct Impl;
    KernelSet(Device& device, const KernelSetOptions& options);

    // The pipeline for a module and its constants, made on first use; null after a failure (see status()).
    const Kernel* kernel(const char* module, const std::vector<uint32_t>& constants, uint32_t subgroup_size = 0);
    Result<Kernel> make(const char* module, const std::vector<uint32_t>& constants, uint32_t subgroup_size) const;
    uint32_t threads(uint32_t on_gpu, uint32_t small) const;  // workgroup size within the device's limit

    const Kernel* decode_kernel(const char* name, const char* name_with_homes, const DecodeLayersShape& shape, std::span<const uint32_t> more);

    Status climb_ladder();  // sets ladder_ and options_.path
    Status test_products(ScalarType type);
    Status test_shrink(ScalarType type);
    Status test_gated_act(ScalarType type);
    void attention_by_heads(Recorder& recorder, const AttentionParams& params, const AttentionShape& shape, ScalarType act_type);  // attention.comp
    Status test_residual(ScalarType type);
    Status test_attention();
    Status test_attention_from_qkv();
    MatmulVariant fast_variant(uint32_t n, uint32_t rows, ScalarType type) const;
    MatmulPlan plan_fast(MatmulVariant variant, uint32_t n, uint32_t k, ScalarType type, uint32_t rows, uint32_t max_splits, bool may_be_in_blocks) const;
    bool can_be_in_blocks(ScalarType type, uint32_t rows) const;
    std::optional<MatmulPlan> plan_direct(uint32_t n, uint32_t k, ScalarType type, uint32_t rows, uint32_t max_splits, bool leaves_room) const;
    void matmul_direct(Recorder& recorder, MatmulParams params, const MatmulPlan& plan, const PagesAhead& ahead);
    bool multiplies_by_warpgroup(ScalarType type, uint32_t rows) const;
    std::optional<MatmulPlan> plan_warpgroup(uint32_t n, uint32_t k, ScalarType type, uint32_t rows, uint32_t max_splits, bool gated = false) const;
    template <typename Params>
    void matmul_warpgroup(Recorder& recorder, Params params, const MatmulPlan& plan, bool gated, uint32_t y_order = kBlocksByColumns, uint32_t joined_columns = 0);
    void matmul_fast(Recorder& recorder, const MatmulParams& params, const MatmulPlan& plan);
    const Kernel* coopmat_kernel(const char* name, const MatmulPlan& plan, uint32_t stride, Activation activation, bool in_turns, uint32_t units,
                                 uint32_t norm_tiles, uint32_t y_order);
    template <typename Params>
    void record_coopmat(Recorder& recorder, const char* name, const Params& params, const MatmulParams& product, const MatmulPlan& plan,
                        uint32_t columns, Activation activation, uint32_t norm_tiles = 0, uint32_t y_order = kBlocksByColumns);

    Device& device_;
    KernelSetOptions options_;
    KernelLadder ladder_;
    KernelPath wanted_path_ = KernelPath::kAuto;
    bool is_tested_ = false;  // the tests at the start are over
    std::unique_ptr<Impl> impl_;
};

// max_rank: over the group's modules and the adapters of this step's segments. Up to kShrinkTurnsMin pieces have a workgroup each; of more, one takes about two until
// there are kShrinkTurnsMax: more workgroups have to wait for room, fewer leave the device idle (measured on an H200: docs/PERFORMANCE.md, "Steps with adapters").
// An odd number, so that with adapters of different ranks all workgroups get a share of the largest one's pieces.
inline constexpr uint32_t kShrinkTurnsMin = 129, kShrinkTurnsMax = 513;
constexpr ShrinkDispatch shrink_dispatch(uint32_t max_rank, uint32_t n_segments, uint32_t n_modules) {
    if (max_rank == 0 || n_segments == 0) return {{0, 0, 0}, {0, 1, 1}};
    const uint32_t n_ranks = round_up(max_rank, 8), n_pieces = n_ranks / kShrinkPieceRanks * n_segments * n_modules;
    return {{n_ranks / kShrinkRanks, n_segments, n_modules}, {std::min(n_pieces, std::clamp(n_pieces / 2 | 1, kShrinkTurnsMin, kShrinkTurnsMax)), 1, 1}};
}

}  // namespace lorad::gpu
