// The recordings of steps: one for each shape, made when it is first wanted, and those that are made at the start.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>

#include "gpu/facts/start_record.h"
#include "model/exec/executor_impl.h"
#include "proto/base/log.h"
#include "proto/base/thread.h"

namespace lorad::model {
namespace {

// So that a start which compiles for long says how far it is. Any thread.
class ProgressClock {
  public:
    // Once in two seconds.
    bool is_due() {
        const int64_t now = seconds();
        int64_t last = last_.load();
        return now >= last + 2 && last_.compare_exchange_strong(last, now);
    }

  private:
    static int64_t seconds() {
        return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count();
    }
    std::atomic<int64_t> last_ = seconds();
};

}  // namespace

StepShape Executor::Impl::shape_of(const StepBatch& batch) const {
    return planner->shape_of(traits_of(batch, slot_lookup(), planner->tile_request(batch.n_rows())), programs.at_work(),
                             merged_facts);
}

Status Executor::Impl::record_pass(gpu::Recorder& recorder, const StepShape& shape,
                                   const MergedWeights* merged_weights) {
    const ForwardContext context{*kernels,
                                 config,
                                 weights,
                                 merged_weights,
                                 kv_cache,
                                 state_cache,
                                 scratch,
                                 *lora_table,
                                 ropes(),
                                 host_logits.address(),
                                 decode_layers.get(),
                                 decode_rows.get(),
                                 gated_lora.get(),
                                 options.n_positions_max};
    return record_forward(
        recorder, context,
        plan_step(kernels->planner(), config, weights, shape.weight_set != 0 ? merged_weights : nullptr, shape));
}

// The program that such a step runs, without which it could be computed all the same.
std::optional<PersistentProgram> Executor::Impl::program_of(const StepShape& shape) {
    if (shape.schedule == LayerSchedule::kBetween) return PersistentProgram::kDecodeRows;
    if (shape.method == AdapterMethod::kGatedProduct) return PersistentProgram::kGatedLora;
    if (shape.schedule == LayerSchedule::kSeparate) return std::nullopt;
    return shape.has_adapters() ? PersistentProgram::kDecodeLayersAdapter : PersistentProgram::kDecodeLayers;
}

// Thread-safe, as recording is.
Result<gpu::CommandBuffer> Executor::Impl::record_step(const StepShape& shape, bool timestamps,
                                                       const MergedWeights* merged_weights) {
    // The copy of a step's masks comes behind its first part.
    TRY_ASSIGN(gpu::Recorder recorder,
               gpu::Recorder::begin(device, {.timestamps = timestamps, .ends_open = shape.part == StepPart::kForward}));
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

// Null: it has to be made. One that was made for a device of another speed than this one turned out to have is made
// again, and kept as long as steps in flight may run it.
const gpu::CommandBuffer* Executor::Impl::find_recording(RecordingCache& cache, const StepShape& shape) {
    const gpu::CommandBuffer* const known = cache.find(shape);
    if (known == nullptr || !known->wants_cuts()) return known;
    retired.push_back({merged, cache.take_one(shape), n_submitted});
    return nullptr;
}

Result<const gpu::CommandBuffer*> Executor::Impl::recording_of(const StepShape& shape) {
    if (const gpu::CommandBuffer* known = find_recording(recordings, shape)) return known;
    TRY_ASSIGN(gpu::CommandBuffer made, record_step(shape, false, merged.get()));
    ++n_recordings;
    return recordings.insert(shape, std::move(made));
}

Result<const gpu::CommandBuffer*> Executor::Impl::whole_recording_of(RingSlot& slot, const StepShape& shape) {
    if (const gpu::CommandBuffer* known = find_recording(slot.whole_steps, shape)) return known;
    TRY_ASSIGN(gpu::CommandBuffer made, record_whole_step(slot, shape));
    ++n_recordings;
    return slot.whole_steps.insert(shape, std::move(made));
}

// Returns the step's recording; if it is not the whole step, a prelude and an epilogue are submitted with it.
Result<const gpu::CommandBuffer*> Executor::Impl::recording_for(InFlight& step) {
    step.is_one_recording =
        InFlight::can_be_one_recording(step.shape) && step.n_state_bytes <= InFlight::whole_state_bytes(step.shape);
    const uint64_t n_before = n_recordings;
    Result<const gpu::CommandBuffer*> recording =
        step.is_one_recording ? whole_recording_of(ring[step.slot], step.shape) : recording_of(step.shape);
    if (n_recordings != n_before) tell_compiling(step.shape);
    return recording;
}

// A software device compiles kernels when they first run, at its first start for many seconds.
void Executor::Impl::tell_compiling(const StepShape& shape) {
    if (!device.capabilities().is_cpu || device.start_record().was_there()) return;
    if (shape.row_bucket == told_rows) return;
    told_rows = shape.row_bucket;
    log_info("first start on a software device: kernels of steps with up to {} rows are compiled as they first run",
             shape.row_bucket);
}

// Compiling pipelines takes most of it and runs well side by side. Those on one recording are of the first slot of the
// ring.
std::vector<std::optional<Result<gpu::CommandBuffer>>> Executor::Impl::record_all(
    const std::vector<StepShape>& shapes) {
    constexpr uint32_t kThreadsMax = 8;
    std::vector<std::optional<Result<gpu::CommandBuffer>>> made(shapes.size());
    std::atomic<size_t> next{0};
    ProgressClock told;
    const auto work = [&] {
        for (size_t i = next++; i < shapes.size(); i = next++) {
            made[i].emplace(InFlight::can_be_one_recording(shapes[i]) ? record_whole_step(ring[0], shapes[i])
                                                                      : record_step(shapes[i], false, nullptr));
            if (told.is_due()) log_info("making kernels: {} of {} usual steps are recorded", i + 1, shapes.size());
        }
    };
    run_on_threads(kThreadsMax, work);
    return made;
}

Status Executor::Impl::warm_up() {
    const std::vector<StepShape> shapes = planner->usual_shapes(programs.offered(), options.n_positions_max);
    std::vector<std::optional<Result<gpu::CommandBuffer>>> made = record_all(shapes);
    for (size_t i = 0; i < shapes.size(); ++i) {
        const bool refused = !made[i]->ok() && made[i]->error().code == ErrorCode::kKernelRefused;
        if (const auto program = program_of(shapes[i]); refused && program) {  // its trial tells, and leaves it out
            programs[*program].refusal = made[i]->error().message;
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
        if (blocks_for_tokens(options.n_positions_max) > InFlight::kWholeStepBlocks &&
            shapes[i].schedule != LayerSchedule::kOneDispatch)
            TRY(recording_of(shapes[i]));
    }
    return ok_status();
}

// Runs nothing.
Result<KernelSurvey> Executor::Impl::survey(TensorFiles& files) {
    TRY_ASSIGN(const auto loader, prepare(files));
    const std::vector<StepShape> shapes = planner->usual_shapes(programs.offered(), options.n_positions_max);
    KernelSurvey survey{.kernels = {},
                        .ladder = kernels->ladder(),
                        .weight_formats = describe_formats(weights),
                        .plan = plan,
                        .n_positions_max = options.n_positions_max,
                        .n_steps = shapes.size(),
                        .failures = {}};
    for (const auto& made : record_all(shapes)) {
        if (made->ok() || std::ranges::find(survey.failures, made->error().message) != survey.failures.end()) continue;
        survey.failures.push_back(made->error().message);
    }
    survey.kernels = kernels->reports();
    return survey;
}

}  // namespace lorad::model
