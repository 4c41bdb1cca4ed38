#include "model/exec/executor.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <thread>
#include <utility>

#include "gpu/kernels/persistent/grid_barrier.h"
#include "gpu/upload.h"
#include "model/config/rope.h"
#include "model/exec/executor_impl.h"
#include "model/exec/kv_precision.h"
#include "model/exec/memory_fit.h"
#include "model/exec/tuned_products.h"
#include "model/files/model_files.h"
#include "model/output/logits.h"
#include "model/output/sampler.h"
#include "proto/base/check.h"
#include "proto/base/format.h"
#include "proto/base/log.h"

namespace lorad::model {
namespace {

Status fill_in(const ModelConfig& config, ExecutorOptions& options) {
    if (options.n_outputs_max == 0) options.n_outputs_max = options.n_sequences_max;
    if (options.n_rows_max < options.n_sequences_max || options.n_sequences_max == 0) {
        return make_error(ErrorCode::kInvalidConfig,
                          format("a step of {} rows cannot hold {} sequences; both must be positive",
                                 options.n_rows_max, options.n_sequences_max));
    }
    if (options.n_positions_max > config.max_positions) {
        return make_error(ErrorCode::kInvalidConfig,
                          format("a context of {} tokens was asked for, the model was made for {}",
                                 options.n_positions_max, config.max_positions));
    }
    return ok_status();
}

bool has_f16_matrices(const TensorFiles& files) {
    return std::ranges::any_of(
        files.tensors(), [](const Tensor& tensor) { return tensor.dtype == DType::kF16 && tensor.shape.size() == 2; });
}

std::vector<uint32_t> head_dims_of(const ModelConfig& config) {
    std::vector<uint32_t> head_dims;
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        const LayerFacts facts = config.layer(layer);
        if (facts.mixer == Mixer::kAttention &&
            std::ranges::find(head_dims, facts.attention.head_dim) == head_dims.end())
            head_dims.push_back(facts.attention.head_dim);
    }
    return head_dims;
}

// Each shape of the model's mixers that shape_of tells once; none of layers with another one.
template <typename Shape>
std::vector<Shape> shapes_of(const ModelConfig& config, Mixer mixer, Shape (*shape_of)(const LayerFacts&)) {
    std::vector<Shape> shapes;
    for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
        const LayerFacts facts = config.layer(layer);
        if (facts.mixer != mixer) continue;
        const Shape shape = shape_of(facts);
        if (std::ranges::find(shapes, shape) == shapes.end()) shapes.push_back(shape);
    }
    return shapes;
}
gpu::DeltaShape delta_shape_of(const LayerFacts& facts) { return delta_shape(facts.delta); }
gpu::MambaShape mamba_shape_of(const LayerFacts& facts) { return mamba_shape(facts.mamba); }

// Other weights have another one, as far as one can know without reading them.
std::string identity_of(const std::filesystem::path& folder, const TensorFiles& files) {
    std::error_code error;
    const auto written = std::filesystem::last_write_time(folder, error);
    if (error) return {};
    uint64_t n_bytes = 0;
    for (const Tensor& tensor : files.tensors()) n_bytes += tensor.data.size();
    return format("{} {} {} {}", std::filesystem::weakly_canonical(folder, error).string(), files.tensors().size(),
                  n_bytes, written.time_since_epoch().count());
}

uint32_t count_dispatches(std::span<const gpu::CommandBuffer* const> recordings) {
    uint32_t n = 0;
    for (const gpu::CommandBuffer* recording : recordings) n += recording->n_dispatches();
    return n;
}

}  // namespace

// The refusal names settings that would make it fit. `files`: as they are without ExecutorOptions::quantize.
Status Executor::Impl::plan_memory_for(uint64_t weight_bytes, const TensorFiles& files, ScratchBytes& scratch_sizes) {
    const FitQuestion question{device.capabilities(), device.free_bytes_estimate(), config, files};
    Result<Fit> fitted = fit(kernels->planner(), *planner, weights, weight_bytes, question, kv_format, options);
    if (!fitted.ok() && fitted.error().code == ErrorCode::kOutOfMemory && options.n_kv_blocks == 0) {
        const std::optional<Savings> savings = savings_that_fit(question, options);
        Error error = std::move(fitted).error();
        error.message += savings ? format("; it fits with {}", savings->flags)
                                 : std::string("; no setting makes it fit: a smaller model, or a larger device");
        return error;
    }
    if (!fitted.ok()) return fitted.error();
    if (options.n_positions_max == 0 && fitted->n_positions_max < config.max_positions) {
        log_warn("context shortened from {} to {} tokens: that is what the device's memory holds", config.max_positions,
                 fitted->n_positions_max);
    }
    options.n_positions_max = fitted->n_positions_max;
    plan = fitted->plan;
    scratch_sizes = fitted->scratch;
    return ok_status();
}

void Executor::Impl::make_planner() {
    planner.emplace(kernels->planner(), config, weights, planner_limits(options, plan.groups));
}

Status Executor::Impl::upload_rope_tables() {
    TRY_ASSIGN(rope_tables, device.create_buffer(rope_tables_bytes(config, options.n_positions_max),
                                                 gpu::MemoryKind::kDeviceLocal, "rope tables"));
    uint64_t offset = 0;
    for (uint32_t rope = 0; rope < config.n_ropes(); ++rope) {
        const std::vector<float> table = model::rope_table(config.rope_of(rope), options.n_positions_max);
        TRY(device.uploader().upload(rope_tables, offset, std::as_bytes(std::span(table))));
        rope_offsets.push_back(offset);
        offset += table.size() * sizeof(float);
    }
    return ok_status();
}

Status Executor::Impl::allocate(const ScratchBytes& scratch_sizes) {
    TRY(upload_rope_tables());
    TRY_ASSIGN(lora_table, LoraTable::create(device, config, options.n_adapter_slots));
    transform = std::make_unique<WeightTransform>(device, *kernels, config, weights, options.merged_bytes);
    TRY_ASSIGN(scratch, create_scratch(device, scratch_sizes));
    TRY_ASSIGN(kv_cache, KvCache::create(device, config, plan.n_kv_blocks, kv_format, plan.groups.windowed,
                                         plan.n_window_blocks));
    TRY_ASSIGN(state_cache, StateCache::create(device, config, options.n_sequences_max + plan.n_snapshots));
    if (can_decode_layers(kernels->persistent, config, weights)) {
        TRY_ASSIGN(decode_layers, DecodeLayers::create(device, config, weights, kv_cache));
        programs.offer(PersistentProgram::kDecodeLayers, "decode_layers", decode_layers->given_up());
        if (kernels->persistent.can_decode_layers(decode_layers_shape(config, weights, 1, true))) {
            programs.offer(PersistentProgram::kDecodeLayersAdapter, "decode_layers with an adapter",
                           decode_layers->given_up());
        }
    }
    if (can_decode_rows(*kernels, config, weights)) {
        TRY_ASSIGN(
            decode_rows,
            GridBarrier::create(device, kernels->persistent.decode_rows_sync_bytes(decode_rows_shape(config, weights)),
                                "decode rows"));
        programs.offer(PersistentProgram::kDecodeRows, "decode_rows", decode_rows->given_up());
    }
    if (!planner->gated_buckets().empty()) {
        TRY_ASSIGN(gated_lora, GridBarrier::create(device, sizeof(gpu::GridBarrierSync), "gated lora"));
        programs.offer(PersistentProgram::kGatedLora, "matmul_warpgroup_gated_lora", gated_lora->given_up());
    }
    TRY_ASSIGN(host_logits, device.create_buffer(host_logits_rows() * config.vocab_size * sizeof(float),
                                                 gpu::MemoryKind::kHostReadback, "host logits"));
    for (RingSlot& slot : ring) {
        TRY_ASSIGN(slot.state,
                   device.create_buffer(scratch.step_state.size(), gpu::MemoryKind::kHostUpload, "host step state"));
        TRY_ASSIGN(slot.masks, device.create_buffer(scratch.masks.size(), gpu::MemoryKind::kHostUpload, "host masks"));
        TRY_ASSIGN(slot.results,
                   device.create_buffer(scratch.results.size(), gpu::MemoryKind::kHostReadback, "host results"));
        TRY_ASSIGN(slot.logprobs,
                   device.create_buffer(scratch.logprobs.size(), gpu::MemoryKind::kHostReadback, "host logprobs"));
        const Matrix& head = weights.output();
        TRY_ASSIGN(slot.hidden, HiddenRows::create(device, scratch.output_xn, kernels->act_type(head.type),
                                                   config.hidden_size, head.k_stride));
    }
    return device.uploader().finish();
}

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

// All that comes before weights are read: what they are, the kernels, the plan of the memory, and the memory. `files`
// outlive the loader.
Result<std::unique_ptr<WeightLoader>> Executor::Impl::prepare(TensorFiles& files) {
    TRY(fill_in(config, options));
    const TensorFiles stored = TensorFiles::of({files.tensors().begin(), files.tensors().end()}, {});
    if (options.quantize) quantize_tensors(files, *options.quantize);
    TRY_ASSIGN(auto loader, WeightLoader::create(files, config, weights,
                                                 {.type = options.weight_type, .keeps_packed = options.keeps_packed}));
    kv_format = fitting_kv_format(options.kv_type, files, config);
    const auto make_kernels = [&](gpu::KvType kv_type) {
        return gpu::KernelSet::create(device, {.path = options.kernel_path,
                                               .batch_invariant = options.batch_invariant,
                                               .has_experts = topology_of(config).has(kFeatureExperts),
                                               .kv_type = kv_type,
                                               .decode = options.decode,
                                               .decode_workgroups = options.decode_workgroups,
                                               .left_out = options.left_out_kernels,
                                               .lora_on_matrices = options.lora_on_matrices,
                                               .expand_rows = options.expand_rows,
                                               .refused = options.refused_kernels,
                                               .head_dims = head_dims_of(config),
                                               .head_group = config.n_heads / config.n_kv_heads,
                                               .packed_formats = packed_formats_of(weights),
                                               .delta_shapes = shapes_of(config, Mixer::kDeltaNet, delta_shape_of),
                                               .mamba_shapes = shapes_of(config, Mixer::kMamba, mamba_shape_of)});
    };
    TRY_ASSIGN(kernels, make_kernels(kv_format.keys_f16.empty() ? options.kv_type : gpu::KvType::kInt8Values));
    if (needs_f32_keys(kv_format, config, kernels->act_type(weights.layers.front().qkv.type))) {
        kv_format = KvFormat(gpu::KvType::kF32);
        TRY_ASSIGN(kernels, make_kernels(kv_format.type));
    }
    options.kernel_path = kernels->options().path;
    // Wide activations would become infinite in products that take their inputs in f16.
    if (config.wide_activations && !options.weight_type && has_f16_matrices(files) &&
        kernels->act_type(gpu::ScalarType::kF16) == gpu::ScalarType::kF16) {
        log_warn("weights: {} has values beyond f16; its f16 matrices become f32, --dtype bfloat16 takes half of that",
                 config.architecture);
        options.weight_type = gpu::ScalarType::kF32;
        weights = ModelWeights();
        TRY_ASSIGN(loader, WeightLoader::create(files, config, weights,
                                                {.type = options.weight_type, .keeps_packed = options.keeps_packed}));
    }
    TRY(kernels->tune(
        device, {.when = options.tuning, .products = tuned_products(weights), .tiles_max = options.tuned_tiles_max}));
    make_planner();
    ScratchBytes scratch_sizes{};
    TRY(plan_memory_for(loader->device_bytes(), stored, scratch_sizes));
    if (plan.groups.has_both()) make_planner();  // of steps with rows of windows
    TRY(loader->allocate(device));
    TRY(allocate(scratch_sizes));
    return loader;
}

Status Executor::Impl::load(const std::filesystem::path& folder, const LoadProgress& progress) {
    TRY_ASSIGN(const auto model_files, ModelFiles::open(folder));
    TRY_ASSIGN(TensorFiles files, model_files->tensors());
    model_identity = identity_of(folder, files);
    TRY_ASSIGN(const auto loader, prepare(files));
    Status warmed = ok_status();
    std::thread warmer;
    if (options.warm_up) warmer = std::thread([&] { warmed = warm_up(); });
    Status uploaded = loader->upload(device, progress);
    if (warmer.joinable()) warmer.join();
    TRY(std::move(uploaded));
    TRY(std::move(warmed));
    return try_programs();
}

// The tests at the start run the fast kernels on small products. A driver may still refuse those of the model's own
// sizes. If no path was requested, the model is then loaded without the refused ones that others can replace and, if
// that does not help, with portable kernels alone. Some drivers report a lack of memory when they cannot compile: what
// lacks it twice counts as refused.
Result<std::unique_ptr<Executor>> Executor::load(gpu::Device& device, const std::filesystem::path& folder,
                                                 const ModelConfig& config, const ExecutorOptions& options,
                                                 const LoadProgress& progress) {
    ExecutorOptions tried = options;
    bool has_lacked_memory = false;
    while (true) {
        auto impl = std::make_unique<Impl>(device, config, tried);
        const Status loaded = impl->load(folder, progress);
        if (loaded.ok()) return std::unique_ptr<Executor>(new Executor(std::move(impl)));
        const ErrorCode why = loaded.error().code;
        const bool is_for_kernels = (why == ErrorCode::kKernelRefused || why == ErrorCode::kOutOfMemory) &&
                                    impl->kernels && impl->kernels->has_failures(why);
        if (!is_for_kernels || options.kernel_path != gpu::KernelPath::kAuto ||
            impl->options.kernel_path == gpu::KernelPath::kPortable)
            return loaded.error();
        std::string how = "as before";
        if (why == ErrorCode::kKernelRefused || std::exchange(has_lacked_memory, true)) {
            const std::vector<std::string> without = impl->kernels->replaceable_failures(why);
            tried.left_out_kernels.insert(tried.left_out_kernels.end(), without.begin(), without.end());
            if (without.empty()) tried.kernel_path = gpu::KernelPath::kPortable;
            how = without.empty() ? "with portable kernels alone" : format("without {}", fmt::join(without, ", "));
        }
        log_warn("kernels: on {}: {}; loading again {}", device.capabilities().name, loaded.error().message, how);
    }
}

Result<KernelSurvey> Executor::survey(gpu::Device& device, TensorFiles files, const ModelConfig& config,
                                      const ExecutorOptions& options) {
    CHECK(device.capabilities().compiles_only);  // else its memory would be taken for weights that never come
    return std::make_unique<Impl>(device, config, options)->survey(files);
}

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
        TRY_ASSIGN(gpu::Buffer table,
                   decode_layer_table(impl_->device, impl_->config, impl_->weights, merged.get(), impl_->kv_cache));
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
