// The steps of an executor, from its submission to its results. executor_load.cpp makes one.
#include "model/exec/executor.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "gpu/upload.h"
#include "model/exec/executor_impl.h"
#include "model/output/logits.h"
#include "model/output/sampler.h"
#include "proto/base/check.h"
#include "proto/base/format.h"
#include "proto/base/log.h"

namespace lorad::model {
namespace {

uint32_t count_dispatches(std::span<const gpu::CommandBuffer* const> recordings) {
    uint32_t n = 0;
    for (const gpu::CommandBuffer* recording : recordings) n += recording->n_dispatches();
    return n;
}

}  // namespace

// Begins a recording. No barrier: the recordings before end with one, so the step before has read its state.
void Executor::Impl::record_prelude(gpu::Recorder& recorder, RingSlot& slot, uint64_t n_bytes) {
    kernels->rows.copy_words(recorder, slot.state.address(), scratch.step_state.address(), n_bytes);
}

Result<const gpu::CommandBuffer*> Executor::Impl::prelude(RingSlot& slot, uint64_t n_bytes) {
    const uint64_t size_class = std::bit_ceil(std::max(n_bytes, kStepStateBytesMin));
    const auto known = slot.preludes.find(size_class);
    if (known != slot.preludes.end()) return &known->second;
    TRY_ASSIGN(gpu::Recorder recorder, gpu::Recorder::begin(device));
    record_prelude(recorder, slot, size_class);
    TRY(kernels->status());
    TRY_ASSIGN(gpu::CommandBuffer made, std::move(recorder).end());
    return &slot.preludes.emplace(size_class, std::move(made)).first->second;
}

Result<const gpu::CommandBuffer*> Executor::Impl::mask_copy(RingSlot& slot, uint32_t n_masks) {
    const uint32_t bucket = bucket_for(n_masks);
    const auto known = slot.mask_copies.find(bucket);
    if (known != slot.mask_copies.end()) return &known->second;
    TRY_ASSIGN(gpu::Recorder recorder, gpu::Recorder::begin(device));
    const uint64_t n_bytes = uint64_t{bucket} * mask_words(config.vocab_size) * sizeof(uint32_t);
    recorder.copy(slot.masks, 0, scratch.masks, 0, std::min(n_bytes, scratch.masks.size()));
    TRY_ASSIGN(gpu::CommandBuffer made, std::move(recorder).end());
    return &slot.mask_copies.emplace(bucket, std::move(made)).first->second;
}

void Executor::Impl::record_epilogue(gpu::Recorder& recorder, RingSlot& slot, bool logprobs) {
    kernels->rows.copy_words(recorder, scratch.results.address(), slot.results.address(), scratch.results.size());
    if (logprobs)
        kernels->rows.copy_words(recorder, scratch.logprobs.address(), slot.logprobs.address(),
                                 scratch.logprobs.size());
}

Result<const gpu::CommandBuffer*> Executor::Impl::epilogue(RingSlot& slot, bool logprobs) {
    std::optional<gpu::CommandBuffer>& known = slot.epilogues[logprobs ? 1 : 0];
    if (!known) {
        TRY_ASSIGN(gpu::Recorder recorder, gpu::Recorder::begin(device));
        record_epilogue(recorder, slot, logprobs);
        TRY(kernels->status());
        TRY_ASSIGN(known, std::move(recorder).end());
    }
    return &*known;
}

// Appends what brings the step's results to the host; a step without outputs has none.
Status Executor::Impl::add_epilogues(const InFlight& step,
                                     std::vector<const gpu::CommandBuffer*>& recordings_in_order) {
    if (step.n_outputs == 0) return ok_status();
    RingSlot& slot = ring[step.slot];
    if (!step.is_one_recording) {
        TRY_ASSIGN(const gpu::CommandBuffer* after, epilogue(slot, step.shape.logprobs));
        recordings_in_order.push_back(after);
    }
    if (step.hidden_outputs.empty()) return ok_status();
    TRY_ASSIGN(const gpu::CommandBuffer* hidden, slot.hidden.copy());
    recordings_in_order.push_back(hidden);
    return ok_status();
}

void Executor::Impl::write_state(const StepBatch& batch, const InFlight& step) {
    RingSlot& slot = ring[step.slot];
    CHECK(step.n_state_bytes <= slot.state.size());
    write_step_state(batch, step.shape, slot_lookup(), step.slot * options.n_outputs_max, planner->heads_max(),
                     slot.state.mapped());
}

// Submits with the state that lies in the slot. If the step has two parts, the recording is the first one.
Status Executor::Impl::replay(InFlight& step, const gpu::CommandBuffer& recording) {
    std::vector<const gpu::CommandBuffer*> recordings_in_order = {&recording};
    if (!step.is_one_recording) {
        TRY_ASSIGN(const gpu::CommandBuffer* before, prelude(ring[step.slot], step.n_state_bytes));
        recordings_in_order.insert(recordings_in_order.begin(), before);
    }
    if (step.shape.part == StepPart::kWhole) TRY(add_epilogues(step, recordings_in_order));
    TRY_ASSIGN(step.value, device.compute_queue().submit_after_upload(recordings_in_order, lora_table->upload_value()));
    step.n_dispatches = count_dispatches(recordings_in_order);
    return ok_status();
}

// The second part, with the masks that lie in the slot.
Status Executor::Impl::replay_draw(InFlight& step) {
    TRY_ASSIGN(const gpu::CommandBuffer* before, mask_copy(ring[step.slot], step.n_masks));
    TRY_ASSIGN(const gpu::CommandBuffer* recording, recording_of(step.shape.draw_part()));
    std::vector<const gpu::CommandBuffer*> recordings_in_order = {before, recording};
    TRY(add_epilogues(step, recordings_in_order));
    TRY_ASSIGN(step.value, device.compute_queue().submit(recordings_in_order));
    step.n_dispatches += count_dispatches(recordings_in_order);
    return ok_status();
}

// A step by itself, while nothing is in flight; as this recording of it, or as it is submitted otherwise.
Result<uint64_t> Executor::Impl::run(const StepBatch& batch, const StepShape& shape,
                                     const gpu::CommandBuffer* recording) {
    InFlight step{.shape = shape, .n_state_bytes = step_state_bytes(batch, shape), .n_outputs = batch.n_outputs()};
    if (recording == nullptr) {
        TRY_ASSIGN(recording, recording_for(step));
    }
    write_state(batch, step);
    TRY(replay(step, *recording));
    return step.value;
}

Executor::Executor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Executor::~Executor() = default;

Status Executor::submit(const StepBatch& batch) {
    Impl& it = *impl_;
    CHECK(batch.n_rows() > 0 && batch.n_rows() <= it.options.n_rows_max);
    CHECK(batch.n_outputs() <= it.options.n_outputs_max);
    CHECK(it.in_flight.size() < kInFlightMax && (it.in_flight.empty() || it.in_flight.back().is_drawn));
    CHECK(batch.n_masks() <= it.options.n_sequences_max);
    CHECK(!batch.is_merged() || it.merged);
    const StepShape shape = it.shape_of(batch);
    InFlight next{.slot = static_cast<uint32_t>(it.n_submitted % kRingSlots),
                  .shape = shape,
                  .n_state_bytes = step_state_bytes(batch, shape),
                  .n_outputs = batch.n_outputs(),
                  .n_masks = batch.n_masks(),
                  .is_drawn = batch.n_masks() == 0,
                  .merged = batch.is_merged() ? it.merged : nullptr};
    TRY_ASSIGN(const gpu::CommandBuffer* step, it.recording_for(next));
    for (uint32_t i = 0; i < batch.n_outputs(); ++i) {
        if (batch.outputs()[i].want_hidden) next.hidden_outputs.push_back(i);
    }
    // Once the step is begun there is no way back: what its draw needs is made before.
    if (!next.is_drawn) {
        TRY(it.mask_copy(it.ring[next.slot], next.n_masks));
        TRY(it.recording_of(shape.draw_part()));
        std::vector<const gpu::CommandBuffer*> behind;
        TRY(it.add_epilogues(next, behind));
    }
    it.write_state(batch, next);
    TRY(it.replay(next, *step));
    ++it.n_submitted;
    it.in_flight.push_back(std::move(next));
    return ok_status();
}

std::span<uint32_t> Executor::masks() {
    Impl& it = *impl_;
    CHECK(!it.in_flight.empty() && !it.in_flight.back().is_drawn);
    const InFlight& step = it.in_flight.back();
    auto* words = reinterpret_cast<uint32_t*>(it.ring[step.slot].masks.mapped().data());
    return {words, size_t{step.n_masks} * mask_words(it.config.vocab_size)};
}

Result<bool> Executor::submit_draw() {
    Impl& it = *impl_;
    CHECK(!it.in_flight.empty() && !it.in_flight.back().is_drawn);
    InFlight& step = it.in_flight.back();
    TRY_ASSIGN(const uint64_t completed, it.device.compute_queue().completed());
    const bool has_waited = completed >= step.value;
    TRY(it.replay_draw(step));
    step.is_drawn = true;
    return has_waited;
}

Result<StepOutput> Executor::finish() {
    Impl& it = *impl_;
    CHECK(!it.in_flight.empty() && it.in_flight.front().is_drawn);
    TRY(it.device.compute_queue().wait(it.in_flight.front().value));
    const bool pretends =
        it.options.decode_fault_step != 0 && it.n_submitted - it.in_flight.size() + 1 == it.options.decode_fault_step;
    if (it.programs.waited_in_vain() != nullptr || (it.programs.any_works() && pretends)) TRY(it.redo_in_flight());
    const InFlight step = it.in_flight.front();
    it.in_flight.erase(it.in_flight.begin());
    it.free_retired();

    const auto* results = reinterpret_cast<const gpu::SampleResult*>(it.ring[step.slot].results.mapped().data());
    it.sampled.resize(step.n_outputs);
    it.max_logits.resize(step.n_outputs);
    it.log_sum_exps.resize(step.n_outputs);
    for (uint32_t i = 0; i < step.n_outputs; ++i) {
        it.sampled[i] = results[i].token;
        it.max_logits[i] = results[i].max_logit;
        it.log_sum_exps[i] = results[i].log_sum_exp;
    }
    const size_t vocab = it.config.vocab_size;
    const auto* logits =
        reinterpret_cast<const float*>(it.host_logits.mapped().data()) + step.slot * it.options.n_outputs_max * vocab;
    const auto* logprobs = reinterpret_cast<const gpu::ChoiceLogprobs*>(it.ring[step.slot].logprobs.mapped().data());
    return StepOutput{it.sampled,
                      it.max_logits,
                      it.log_sum_exps,
                      {logits, step.n_outputs * vocab},
                      it.config.vocab_size,
                      {logprobs, step.n_outputs},
                      step.hidden_outputs.empty() ? std::span<const float>()
                                                  : it.ring[step.slot].hidden.read(step.hidden_outputs, step.n_outputs),
                      it.config.hidden_size,
                      step.n_dispatches};
}

Status Executor::finish_gains(const AdapterView& adapter) { return impl_->transform->finish_gains(adapter); }

Result<std::shared_ptr<const MergedWeights>> Executor::merge(std::span<const LoraUse> uses) {
    std::vector<MergeTerm> terms;
    for (const LoraUse& use : uses) terms.push_back({&impl_->lora_table->adapter(use.slot), use.scale});
    TRY_ASSIGN(std::unique_ptr<MergedWeights> merged, impl_->transform->merge(terms));
    if (impl_->decode_layers) {
        TRY_ASSIGN(gpu::Buffer table, decode_layer_table(impl_->device, impl_->config, impl_->weights, merged.get(),
                                                         impl_->kv_cache, impl_->ropes()));
        TRY(impl_->device.uploader().finish());
        merged->set_decode_table(std::move(table));
    }
    return std::shared_ptr<const MergedWeights>(std::move(merged));
}

void Executor::use_merged(std::shared_ptr<const MergedWeights> merged) {
    Impl& it = *impl_;
    it.retired.push_back({std::move(it.merged), it.recordings.take(1), it.n_submitted});
    it.merged = std::move(merged);
    it.merged_facts = {};
    if (it.merged)
        it.merged_facts = {.has_decode_table = it.merged->decode_table() != nullptr,
                           .has_gate_up_bias = has_gate_up_bias(it.weights, it.merged.get())};
    it.free_retired();
}

uint32_t Executor::n_in_flight() const { return static_cast<uint32_t>(impl_->in_flight.size()); }
const ModelConfig& Executor::config() const { return impl_->config; }
const ModelWeights& Executor::weights() const { return impl_->weights; }
const ExecutorOptions& Executor::options() const { return impl_->options; }
const MemoryPlan& Executor::memory_plan() const { return impl_->plan; }
uint32_t Executor::n_kv_blocks() const { return impl_->plan.n_kv_blocks; }
uint32_t Executor::n_snapshots() const { return impl_->plan.n_snapshots; }
LoraTable& Executor::lora_table() { return *impl_->lora_table; }
uint64_t Executor::n_recordings() const { return impl_->n_recordings; }
bool Executor::decodes_in_one_dispatch() const { return impl_->programs[PersistentProgram::kDecodeLayers].works; }
bool Executor::decodes_rows_together() const { return impl_->programs[PersistentProgram::kDecodeRows].works; }
bool Executor::gates_adapters() const { return impl_->programs[PersistentProgram::kGatedLora].works; }

// A step with made-up contents.
Result<StepBatch> Executor::Impl::profile_batch(const ProfileStep& what,
                                                std::span<const uint32_t> adapter_slots) const {
    const uint32_t n_rows = what.n_rows, n_context = what.is_prompt ? what.n_rows : what.n_context;
    const uint32_t n_rows_max = what.is_prompt ? options.n_rows_max : options.n_sequences_max;
    const uint64_t n_sequences = (what.is_prompt ? 0 : uint64_t{n_rows}) + (what.n_chunk > 0 ? 1 : 0);
    if (n_rows == 0 || n_rows > n_rows_max || n_sequences > options.n_sequences_max ||
        (what.is_prompt && what.n_chunk > 0) || uint64_t{n_rows} + what.n_chunk > options.n_rows_max ||
        n_context == 0 || std::max(n_context, what.n_chunk) > options.n_positions_max) {
        return make_error(
            ErrorCode::kInvalidConfig,
            format("cannot profile {} rows with {} tokens of context and {} rows of a prompt: the limits are {} and "
                   "{}, {} rows in all",
                   n_rows, n_context, what.n_chunk, n_rows_max, options.n_positions_max, options.n_rows_max));
    }
    StepBatch batch;
    std::vector<BlockId> blocks(blocks_for_tokens(std::max(n_context, what.n_chunk)));
    const uint32_t n_prompt_rows = what.is_prompt ? n_rows : what.n_chunk;
    if (n_prompt_rows > 0) {
        for (uint32_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<BlockId>(i % plan.n_table_blocks());
        std::vector<TokenId> tokens(n_prompt_rows);
        for (uint32_t i = 0; i < n_prompt_rows; ++i) tokens[i] = static_cast<TokenId>(i % config.vocab_size);
        const uint32_t slot = adapter_slots.empty() ? kNoAdapterSlot : adapter_slots[0];
        batch.add_output(batch.add_rows(tokens, 0, blocks, slot) + n_prompt_rows - 1, false);
    }
    for (uint32_t row = 0; row < n_rows && !what.is_prompt; ++row) {
        for (uint32_t i = 0; i < blocks.size(); ++i) {
            blocks[i] = static_cast<BlockId>((row * blocks.size() + i) % plan.n_table_blocks());
        }
        const TokenId token = static_cast<TokenId>(row % config.vocab_size);
        const uint32_t slot =
            adapter_slots.empty() ? kNoAdapterSlot : adapter_slots[row * adapter_slots.size() / n_rows];
        const uint32_t added = batch.add_rows({&token, 1}, n_context - 1, blocks, slot);
        if (what.sampling.greedy())
            batch.add_output(added, false);
        else
            batch.add_output(added, choice_rule(what.sampling, n_context));
    }
    return batch;
}

Result<std::string> Executor::describe_step(const ProfileStep& what, std::span<const uint32_t> adapter_slots) const {
    TRY_ASSIGN(const StepBatch batch, impl_->profile_batch(what, adapter_slots));
    return describe(
        plan_step(impl_->kernels->planner(), impl_->config, impl_->weights, nullptr, impl_->shape_of(batch)),
        impl_->config);
}

Result<std::vector<gpu::KernelProfile>> Executor::profile(const ProfileStep& what,
                                                          std::span<const uint32_t> adapter_slots, uint32_t n_repeats) {
    Impl& it = *impl_;
    CHECK(it.in_flight.empty());
    TRY_ASSIGN(const StepBatch batch, it.profile_batch(what, adapter_slots));
    const StepShape shape = it.shape_of(batch);
    TRY_ASSIGN(const gpu::CommandBuffer step, it.record_step(shape, true, nullptr));
    std::vector<gpu::DispatchTime> times;
    for (uint32_t repeat = 0; repeat <= n_repeats; ++repeat) {
        TRY_ASSIGN(const uint64_t value, it.run(batch, shape, &step));
        TRY(it.device.compute_queue().wait(value));
        if (repeat == 0) continue;  // clocks and caches are warm from here on
        TRY_ASSIGN(const auto once, gpu::read_dispatch_times(it.device, step));
        times.insert(times.end(), once.begin(), once.end());
    }
    return gpu::sum_by_kernel(times);
}

}  // namespace lorad::model
