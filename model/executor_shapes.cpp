// Which recordings there are: the shape of a batch, a recording of each, and those that are made at the start.
#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <set>
#include <thread>

#include "model/executor_impl.h"
#include "model/joined_columns.h"
#include "proto/base/thread.h"

namespace lorad::model {
namespace {

constexpr std::array kLoraLevels = {gpu::LoraLevel::kNone, gpu::LoraLevel::kPlain, gpu::LoraLevel::kFull};
constexpr uint32_t kSingleBucketMin = 64;
constexpr uint32_t kLongRunRowsMin = 128;  // of a step: as many as the tiles of a product take
constexpr uint32_t kFewRunRowsMin = 64;
constexpr uint32_t kLoneRowsMax = 128;  // of a step: with more a dispatch less is nothing, and each part of a context makes its queries again

// Of a step of row_bucket rows. The tile of gated_act_matrix with the most runs ends last, after about 2 us for each of them on an H200; without
// matrices 64 rows take 19 us and 128 rows 34, however many runs they are.
bool has_few_runs(const StepBatch& batch, uint32_t row_bucket) {
    constexpr uint32_t kRowsPerRun = 10;
    const uint32_t n_runs = most_runs(batch);
    return n_runs > 0 && n_runs <= row_bucket / kRowsPerRun;
}

}  // namespace

// Whether the activation has a kernel for few runs in steps of so many rows.
bool Executor::Impl::gates_few_runs(uint32_t row_bucket) const {
    const LayerWeights& layer = weights.layers.front();
    gpu::GatedActParams params{};
    params.ffn = config.intermediate_size;
    params.y_stride = layer.gate_up.n_padded;
    return row_bucket >= kFewRunRowsMin &&
           kernels->gates_by_matrix(params, {.rows = row_bucket, .lora = gpu::LoraLevel::kPlain, .few_runs = true}, kernels->act_type(layer.down.type));
}

// Whether the adapters' parts of such a step are added by dispatches of their own.
bool Executor::Impl::expands_apart(const StepShape& shape, uint32_t rank_max) const {
    return shape.lora == gpu::LoraLevel::kPlain && !shape.long_runs && !shape.joined && kernels->expands_apart(rank_max, shape.row_bucket);
}

// Whether such a step of long runs has products without the adapters' part. As the first layer's qkv has it: of a model with matrices of several types some may lose by it.
bool Executor::Impl::consumers_add_long_runs(const StepShape& shape, uint32_t rank_max) const {
    return kernels->consumers_add_long_runs(rank_max, shape.row_bucket, weight_type());
}

bool Executor::Impl::joins_bucket(uint32_t row_bucket) const { return std::ranges::binary_search(joined_buckets, row_bucket); }

// Whether the products of such a batch have its adapters as more k, of which each step costs a tile of rows as much as one of w. On an H200 that pays up to about a
// twelfth of all work (docs/PERFORMANCE.md, "Adapters as more k"); with long runs, whose products would be by KHR matrices, wherever it was measured, a fifth at the most,
// and of small models other things take the time.
bool Executor::Impl::joins(const StepBatch& batch, const StepShape& shape) const {
    if (shape.lora != gpu::LoraLevel::kPlain || !joins_bucket(shape.row_bucket)) return false;
    const std::optional<JoinedColumns> columns = JoinedColumns::of(batch, slot_lookup(), weight_type());
    if (!columns) return false;
    double more = 0, own = 0;
    const std::array products = products_of(weights.layers.front());
    for (uint32_t group = 0; group < gpu::kLoraGroups; ++group) {
        more += columns->mean_steps(group) * gpu::kJoinedStep * products[group]->n;
        own += static_cast<double>(products[group]->k) * products[group]->n;
    }
    return more <= (has_long_runs(batch) ? 1.0 : 1.0 / 12) * own;
}

// Whether attention can take such a step's rows from the sums of their product, if each is of a sequence of its own.
bool Executor::Impl::takes_lone_rows(const StepShape& shape) const {
    const gpu::LoraLevel lora = shape.expanded || shape.joined ? gpu::LoraLevel::kNone : shape.lora;  // what is still to be added
    return shape.row_bucket <= kLoneRowsMax && !shape.tiles && !shape.extras &&
           kernels->attends_from_qkv(qkv_shape(config, {.rows = shape.row_bucket, .lora = lora}), attention_shape(config, shape));
}

// Whether a step without adapters may be by DecodeRows, which computes all of the last layer, so not for steps without outputs.
bool Executor::Impl::takes_between(const StepShape& shape) const {
    const bool has_rows = decode_rows && shape.row_bucket >= 2 && shape.row_bucket <= gpu::kDecodeRowsMax && shape.output_bucket > 0;
    return has_rows && (shape.weight_set == 0 || !has_gate_up_bias(weights, merged.get()));
}

// Whether such steps have gate and up with their rows' adapters in one product, where these are of few ranks and of the weights' type.
bool Executor::Impl::takes_gated_lora(uint32_t row_bucket) const { return gated_lora && std::ranges::binary_search(gated_buckets, row_bucket); }

// Whether such steps have no logits, where nobody reads them.
bool Executor::Impl::takes_argmax(uint32_t output_bucket) const {
    const Matrix& head = weights.output();
    return output_bucket > 0 && kernels->plan_argmax(config.vocab_size, head.k, head.type, output_bucket).has_value();
}

StepShape Executor::Impl::shape_of(const StepBatch& batch) const {
    uint32_t n_context = 0;
    for (const BatchRow& row : batch.rows()) n_context = std::max(n_context, row.position + 1);
    StepShape shape;
    shape.row_bucket = bucket_for(batch.n_rows());
    shape.output_bucket = bucket_for(batch.n_outputs());
    shape.attention_splits = splits_for(shape.row_bucket, n_context);
    shape.weight_set = batch.is_merged() ? 1 : 0;
    shape.lora = batch.is_merged() ? gpu::LoraLevel::kNone : lora_level(batch, slot_lookup());
    shape.extras = has_extras(batch, slot_lookup());
    shape.rules = !batch.choices().empty();
    shape.logits_to_host = std::ranges::any_of(batch.outputs(), &OutputRow::want_logits) && takes_argmax(shape.output_bucket);
    shape.part = batch.n_masks() > 0 ? StepPart::kForward : StepPart::kWhole;
    for (const gpu::ChoiceRule& rule : batch.choices()) {
        shape.changes = shape.changes || (rule.what & gpu::kRuleAdjusts) != 0;
        shape.logprobs = shape.logprobs || (rule.what & gpu::kRuleLogprobs) != 0;
    }
    if (kernels->attends_by_tile(config.head_dim)) {
        const uint32_t tile_rows = kernels->attention_tile_rows(config.head_dim, shape.row_bucket);
        const RowRuns runs = row_runs(batch, tile_rows);
        shape.tiles = runs.n_tiles > 0;
        if (shape.tiles) {
            shape.tile_rows = tile_rows;
            shape.attention_splits = tile_splits_for(runs.n_tiles, runs.n_single_rows, shape.row_bucket, n_context);
            // Few classes, so that few recordings are made.
            shape.single_bucket = runs.n_single_rows == 0 ? 0 : std::max(bucket_for(runs.n_single_rows), std::min(kSingleBucketMin, bucket_for(options.n_rows_max)));
        }
    }
    // The kernels of the extras read the rows' uses, which the plain level does not write.
    if (shape.extras && shape.lora == gpu::LoraLevel::kPlain) shape.lora = gpu::LoraLevel::kFull;
    const uint32_t rank_max = std::ranges::max(largest_ranks(batch, slot_lookup()));
    const bool decodes = decode_works && shape.row_bucket == 1 && !shape.extras && (shape.weight_set == 0 || merged->decode_table() != nullptr);
    const bool is_base = shape.lora == gpu::LoraLevel::kNone;
    shape.one_dispatch = decodes && decodes_level(shape.lora) && (is_base || rank_max <= gpu::kDecodeRankMax) && n_context <= options.one_dispatch_context_max;
    if (shape.one_dispatch && !is_base && types_of_adapters(batch, slot_lookup()) == 1u << decode_lora_type()) shape.lora_type = decode_lora_type();
    shape.apart = decodes && is_base && !shape.one_dispatch;
    if (shape.one_dispatch) shape.attention_splits = decode_splits_for(n_context);
    shape.between = rows_work && is_base && !shape.extras && takes_between(shape);
    shape.joined = joins(batch, shape);
    if (shape.joined) shape.joined_type = weight_type();
    const bool long_runs = shape.lora == gpu::LoraLevel::kPlain && !shape.joined && shape.row_bucket >= kLongRunRowsMin && has_long_runs(batch);
    shape.long_runs = long_runs && !consumers_add_long_runs(shape, rank_max);
    shape.expanded = !shape.one_dispatch && expands_apart(shape, rank_max);
    shape.lone_rows = !shape.one_dispatch && takes_lone_rows(shape) && has_lone_rows(batch);
    shape.gated_lora = gated_works && shape.lora == gpu::LoraLevel::kPlain && !shape.joined && !shape.expanded && rank_max <= gpu::kGatedLoraRanks && takes_gated_lora(shape.row_bucket) &&
                       types_of_adapters(batch, slot_lookup()) == 1u << static_cast<uint32_t>(weight_type());
    // Not of long runs that consumers add: gated_act on matrices writes rows alone, and down by warpgroups wants blocks.
    shape.few_runs = shape.lora == gpu::LoraLevel::kPlain && !long_runs && !shape.joined && !shape.expanded && !shape.gated_lora && gates_few_runs(shape.row_bucket) &&
                     has_few_runs(batch, shape.row_bucket);
    return shape;
}

Status Executor::Impl::record_pass(gpu::Recorder& recorder, const StepShape& shape, const MergedWeights* merged_weights) {
    const ForwardContext context{*kernels, config, weights, merged_weights, kv_cache, scratch, *lora_table, rope_table.address(),
                                 host_logits.address(), decode_layers.get(), decode_rows.get(), gated_lora.get()};
    return record_forward(recorder, context, shape);
}

// Thread-safe, as recording is.
Result<gpu::CommandBuffer> Executor::Impl::record_step(const StepShape& shape, bool timestamps, const MergedWeights* merged_weights) {
    // Behind the first part of a step comes the copy of its masks.
    TRY_ASSIGN(gpu::Recorder recorder, gpu::Recorder::begin(device, {.timestamps = timestamps, .ends_open = shape.part == StepPart::kForward}));
    TRY(record_pass(recorder, shape, merged_weights));
    return std::move(recorder).end();
}

// Likewise.
Result<gpu::CommandBuffer> Executor::Impl::record_whole_step(RingSlot& slot, const StepShape& shape) {
    CHECK(InFlight::can_be_one_recording(shape));
    TRY_ASSIGN(gpu::Recorder recorder, gpu::Recorder::begin(device));
    record_prelude(recorder, slot, std::min(InFlight::whole_state_bytes(shape), scratch.step_state.size()));
    recorder.barrier();
    TRY(record_pass(recorder, shape, nullptr));
    recorder.barrier();
    record_epilogue(recorder, slot, shape.logprobs);
    TRY(kernels->status());
    return std::move(recorder).end();
}

Result<const gpu::CommandBuffer*> Executor::Impl::recording_of(const StepShape& shape) {
    if (const gpu::CommandBuffer* known = recordings.find(shape)) return known;
    TRY_ASSIGN(gpu::CommandBuffer made, record_step(shape, false, merged.get()));
    ++n_recordings;
    return recordings.insert(shape, std::move(made));
}

Result<const gpu::CommandBuffer*> Executor::Impl::whole_recording_of(RingSlot& slot, const StepShape& shape) {
    if (const gpu::CommandBuffer* known = slot.whole_steps.find(shape)) return known;
    TRY_ASSIGN(gpu::CommandBuffer made, record_whole_step(slot, shape));
    ++n_recordings;
    return slot.whole_steps.insert(shape, std::move(made));
}

// What the step is submitted as, with a prelude and an epilogue of its own where it is not all of it.
Result<const gpu::CommandBuffer*> Executor::Impl::recording_for(InFlight& step) {
    step.is_one_recording = InFlight::can_be_one_recording(step.shape) && step.n_state_bytes <= InFlight::whole_state_bytes(step.shape);
    return step.is_one_recording ? whole_recording_of(ring[step.slot], step.shape) : recording_of(step.shape);
}

// Decodes of short and of long texts at every number of sequences, and the end of a prompt at every size of chunk.
std::vector<StepShape> Executor::Impl::usual_shapes() const {
    std::set<StepShape> shapes;
    const auto joined = [&](StepShape shape) {
        shape.joined = true;
        shape.joined_type = weight_type();
        shape.long_runs = shape.few_runs = false;
        return shape;
    };
    // A few rows may be decodes, each of a sequence of its own, or the end of a prompt among them.
    const auto insert = [&](StepShape shape) {
        shape.lone_rows = takes_lone_rows(shape);
        shapes.insert(shape);
        if (shape.row_bucket == 1) return;
        shape.lone_rows = false;
        shapes.insert(shape);
    };
    const auto add = [&](uint32_t n_rows, uint32_t n_outputs, uint32_t n_context) {
        const uint32_t row_bucket = bucket_for(n_rows);
        for (const gpu::LoraLevel lora : kLoraLevels) {
            const StepShape shape{.row_bucket = row_bucket, .output_bucket = bucket_for(n_outputs),
                                  .attention_splits = splits_for(row_bucket, n_context), .lora = lora};
            StepShape with_rules = shape, few_runs = shape, expanded = shape;
            with_rules.rules = few_runs.few_runs = expanded.expanded = true;
            insert(shape);
            insert(with_rules);
            if (lora == gpu::LoraLevel::kPlain && gates_few_runs(row_bucket)) shapes.insert(few_runs);
            if (expands_apart(shape, kLoraRankMax)) insert(expanded);
            if (lora == gpu::LoraLevel::kPlain && joins_bucket(row_bucket)) insert(joined(shape));
            if (lora == gpu::LoraLevel::kPlain && takes_gated_lora(row_bucket)) {
                for (const bool rules : {false, true}) {
                    StepShape gated = shape;
                    gated.gated_lora = true;
                    gated.rules = rules;
                    insert(gated);
                }
            }
            if (lora == gpu::LoraLevel::kNone && takes_between(shape)) {
                StepShape between = shape;
                for (const bool rules : {false, true}) {
                    between.between = true;
                    between.rules = rules;
                    insert(between);
                }
            }
            if (decode_layers && row_bucket == 1 && decodes_level(lora)) {
                for (const bool rules : {false, true}) {
                    for (uint32_t splits = decode_splits_for(std::min(n_context, options.one_dispatch_context_max)); splits > 0; splits /= 2) {
                        StepShape one{.row_bucket = 1, .output_bucket = bucket_for(n_outputs), .attention_splits = splits, .lora = lora, .rules = rules, .one_dispatch = true};
                        shapes.insert(one);
                        if (lora == gpu::LoraLevel::kNone) continue;
                        one.lora_type = decode_lora_type();
                        shapes.insert(one);
                    }
                    if (n_context <= options.one_dispatch_context_max || lora != gpu::LoraLevel::kNone) continue;
                    insert({.row_bucket = 1, .output_bucket = bucket_for(n_outputs), .attention_splits = splits_for(1, n_context), .rules = rules, .apart = true});
                }
            }
        }
    };
    for (const uint32_t n_rows : buckets_up_to(std::min(options.n_sequences_max, options.n_outputs_max))) {
        add(n_rows, n_rows, std::min(options.n_positions_max, uint32_t{kBlockTokens}));
        add(n_rows, n_rows, options.n_positions_max);
    }
    const bool tiles = kernels->attends_by_tile(config.head_dim);
    for (const uint32_t n_rows : buckets_up_to(options.n_rows_max)) {
        if (!tiles || n_rows < kTileRowsMin) {
            add(n_rows, 1, n_rows);
            continue;
        }
        // The end of a long prompt: the pipelines of splits.
        const uint32_t tile_rows = kernels->attention_tile_rows(config.head_dim, bucket_for(n_rows));
        const uint32_t n_tiles = ceil_div(n_rows, tile_rows);
        const uint32_t splits = tile_splits_for(n_tiles, 0, bucket_for(n_rows), options.n_positions_max);
        shapes.insert({.row_bucket = bucket_for(n_rows), .output_bucket = 1, .attention_splits = splits, .tiles = true, .tile_rows = tile_rows});
        for (const gpu::LoraLevel lora : kLoraLevels) {
            // A chunk beside decodes: its rows outside tiles have a pipeline of their own.
            for (const bool few_runs : {false, true}) {
                if (n_rows < kSingleBucketMin || (few_runs && (lora != gpu::LoraLevel::kPlain || !gates_few_runs(bucket_for(n_rows))))) continue;
                const uint32_t n_outputs = bucket_for(std::min(n_rows / 2, options.n_outputs_max));
                const StepShape beside{.row_bucket = bucket_for(n_rows), .output_bucket = n_outputs, .lora = lora, .tiles = true, .tile_rows = tile_rows,
                                       .few_runs = few_runs, .single_bucket = kSingleBucketMin};
                shapes.insert(beside);
                if (lora == gpu::LoraLevel::kNone && takes_argmax(n_outputs)) {  // of a prompt's log-probabilities, more than there are sequences
                    StepShape read = beside;
                    read.logits_to_host = true;
                    shapes.insert(read);
                }
                if (lora == gpu::LoraLevel::kPlain && joins_bucket(beside.row_bucket)) shapes.insert(joined(beside));
            }
            const bool is_plain = lora == gpu::LoraLevel::kPlain, long_runs = is_plain && n_rows >= kLongRunRowsMin;
            StepShape end{.row_bucket = bucket_for(n_rows), .output_bucket = 1, .lora = lora, .tiles = true, .tile_rows = tile_rows,
                          .long_runs = long_runs, .few_runs = is_plain && !long_runs && gates_few_runs(bucket_for(n_rows))};
            shapes.insert(end);
            if (is_plain && joins_bucket(end.row_bucket)) shapes.insert(joined(end));
            if (is_plain && takes_gated_lora(end.row_bucket)) {
                StepShape gated = end;
                gated.gated_lora = true;
                gated.few_runs = false;
                shapes.insert(gated);
            }
            end.long_runs = false;
            constexpr uint32_t kSmallRank = 1;
            if (long_runs && consumers_add_long_runs(end, kSmallRank)) shapes.insert(end);
        }
    }
    // The pipelines of what only some requests want.
    const uint32_t n_rows = bucket_for(1);
    insert({.row_bucket = n_rows, .output_bucket = n_rows, .rules = true, .changes = true, .logprobs = true});
    shapes.insert({.row_bucket = n_rows, .output_bucket = n_rows, .rules = true, .part = StepPart::kDraw});
    return {shapes.begin(), shapes.end()};
}

// Compiling pipelines takes most of it and runs well side by side.
Status Executor::Impl::warm_up() {
    constexpr uint32_t kThreadsMax = 8;
    const std::vector<StepShape> shapes = usual_shapes();
    std::vector<std::optional<Result<gpu::CommandBuffer>>> made(shapes.size());
    std::atomic<size_t> next{0};
    const auto work = [&] {
        for (size_t i = next++; i < shapes.size(); i = next++) {
            made[i].emplace(InFlight::can_be_one_recording(shapes[i]) ? record_whole_step(ring[0], shapes[i]) : record_step(shapes[i], false, nullptr));
        }
    };
    std::vector<std::thread> threads;
    for (uint32_t i = 1; i < std::clamp(std::thread::hardware_concurrency(), 1u, kThreadsMax); ++i) {
        if (!start_thread(threads.emplace_back(), work)) {  // fewer will do
            threads.pop_back();
            break;
        }
    }
    work();
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < shapes.size(); ++i) {
        const bool refused = !made[i]->ok() && made[i]->error().code == ErrorCode::kKernelRefused;
        if (refused && shapes[i].between) {
            rows_refusal = made[i]->error().message;
            continue;
        }
        if (refused && shapes[i].gated_lora) {
            gated_refusal = made[i]->error().message;
            continue;
        }
        if (refused && (shapes[i].one_dispatch || shapes[i].apart)) {
            // There is another way: see try_decode_layers().
            (shapes[i].lora == gpu::LoraLevel::kNone ? decode_refusal : decode_adapter_refusal) = made[i]->error().message;
            continue;
        }
        TRY_ASSIGN(gpu::CommandBuffer recording, std::move(*made[i]));
        ++n_recordings;
        if (!InFlight::can_be_one_recording(shapes[i])) {
            recordings.insert(shapes[i], std::move(recording));
            continue;
        }
        ring[0].whole_steps.insert(shapes[i], std::move(recording));
        for (RingSlot& slot : ring) TRY(whole_recording_of(slot, shapes[i]));  // of the others: compiled by now
        if (blocks_for_tokens(options.n_positions_max) > InFlight::kWholeStepBlocks && !shapes[i].one_dispatch) TRY(recording_of(shapes[i]));
    }
    return ok_status();
}

}  // namespace lorad::model
