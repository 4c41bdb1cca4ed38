// The parts of Executor, for executor_load.cpp (making one), executor.cpp (steps), executor_shapes.cpp (their
// recordings) and executor_trials.cpp (trials of persistent programs) alone.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gpu/kernels/kernels.h"
#include "gpu/queue.h"
#include "model/config/rope.h"
#include "model/exec/executor.h"
#include "model/exec/hidden_rows.h"
#include "model/exec/kv_cache.h"
#include "model/exec/persistent_programs.h"
#include "model/exec/recording_cache.h"
#include "model/exec/state_cache.h"
#include "model/forward/decode_layers.h"
#include "model/forward/forward.h"
#include "model/forward/scratch.h"
#include "model/step/step_planner.h"
#include "model/step/step_state.h"
#include "proto/base/rounding.h"

namespace lorad::model {

constexpr uint32_t kInFlightMax = 2;
// One more than can be in flight, so that the answers of a finished step stay readable while two others run.
constexpr uint32_t kRingSlots = kInFlightMax + 1;

// Host memory of one step in flight.
struct RingSlot {
    gpu::Buffer state;                                   // the step state as the host writes it
    gpu::Buffer masks;                                   // as the host writes them
    gpu::Buffer results;                                 // SampleResult[n_outputs_max]
    gpu::Buffer logprobs;                                // ChoiceLogprobs[n_outputs_max]
    std::map<uint64_t, gpu::CommandBuffer> preludes;     // by size class: state -> scratch.step_state
    std::map<uint32_t, gpu::CommandBuffer> mask_copies;  // by number, a bucket: masks -> scratch.masks
    std::optional<gpu::CommandBuffer> epilogues[2];      // scratch.results -> results; the second logprobs as well
    RecordingCache whole_steps;                          // prelude, step and epilogue in one
    HiddenRows hidden;                                   // scratch.output_xn, where a step's outputs want it
};

// Kept because recordings of steps in flight may still read it.
struct Retired {
    std::shared_ptr<const MergedWeights> merged;
    std::list<std::pair<StepShape, gpu::CommandBuffer>> recordings;
    uint64_t until_step = 0;  // number of finished steps from which on nobody does
};

struct InFlight {
    uint32_t slot = 0;
    StepShape shape;
    uint64_t n_state_bytes = 0;
    uint32_t n_outputs = 0;
    uint64_t value = 0;  // of the queue's timeline
    uint32_t n_dispatches = 0;
    std::vector<uint32_t> hidden_outputs = {};  // whose hidden states were copied
    uint32_t n_masks = 0;
    bool is_drawn = true;           // else it waits for submit_draw()
    bool is_one_recording = false;  // RingSlot::whole_steps

    std::shared_ptr<const MergedWeights> merged = nullptr;  // that it runs on, if it does
    // Each further recording in a submission has a fixed cost on the device (docs/PERFORMANCE.md), which only short
    // steps notice. Each slot of the ring has its own recordings. Steps on merged weights are left out, as
    // Executor::use_merged does not look for them in the slots. No step in it reads a grid from the state: see
    // Recorder::barrier().
    static bool can_be_one_recording(const StepShape& shape) {
        constexpr uint32_t kRowsMax = 16;
        const bool is_short =
            shape.schedule == LayerSchedule::kOneDispatch ||
            (shape.lora == gpu::LoraLevel::kNone && !shape.extras && !shape.tiles && shape.row_bucket <= kRowsMax);
        return is_short && shape.weight_set == 0 && shape.part == StepPart::kWhole && shape.output_bucket > 0;
    }
    // A recording of a whole step copies the state up to so many blocks of each row, or the lists of rules. A step with
    // more takes three recordings.
    static constexpr uint32_t kWholeStepBlocks = 64;
    static uint64_t whole_state_bytes(const StepShape& shape) {
        return round_up(StepLayout(shape).block_tables + uint64_t{shape.row_bucket} * kWholeStepBlocks *
                                                             (shape.window_rows ? 2 : 1) * sizeof(BlockId),
                        kStepStateBytesMin);
    }
};

struct Executor::Impl {
    gpu::Device& device;
    const ModelConfig config;
    ExecutorOptions options;  // filled in
    MemoryPlan plan;
    std::unique_ptr<gpu::KernelSet> kernels;
    ModelWeights weights;
    std::optional<StepPlanner> planner;  // of kernels and weights
    KvFormat kv_format;
    KvCache kv_cache;
    StateCache state_cache;
    Scratch scratch;
    gpu::Buffer rope_tables;
    std::vector<uint64_t> rope_offsets;  // RopeTables
    gpu::Buffer host_logits;             // [ring slot][n_outputs_max][vocab]
    std::unique_ptr<LoraTable> lora_table;
    std::unique_ptr<WeightTransform> transform;
    std::shared_ptr<const MergedWeights> merged;
    MergedFacts merged_facts;                     // of the merged weights
    std::unique_ptr<DecodeLayers> decode_layers;  // null where the device or the model is not made for it
    std::unique_ptr<GridBarrier> decode_rows;     // likewise; of decode_bricks where the layers are packed
    std::unique_ptr<GridBarrier> gated_lora;      // likewise
    ProgramStates programs;                       // of the three
    std::string model_identity;                   // where its files lie, their size and time
    RingSlot ring[kRingSlots];
    RecordingCache recordings;
    uint64_t n_recordings = 0;
    uint32_t told_rows = 0;  // of the last steps whose kernels were said to be compiled
    uint64_t n_submitted = 0;
    std::vector<InFlight> in_flight;  // oldest first
    std::vector<Retired> retired;
    std::vector<int32_t> sampled;
    std::vector<float> max_logits, log_sum_exps;

    Impl(gpu::Device& on_device, const ModelConfig& model_config, const ExecutorOptions& with_options)
        : device(on_device), config(model_config), options(with_options) {}
    ~Impl() {
        // A failure here means that the device is lost: nothing runs any more.
        for (const InFlight& step : in_flight) (void)device.compute_queue().wait(step.value).ok();
    }

    uint64_t host_logits_rows() const { return uint64_t{kRingSlots} * options.n_outputs_max; }

    Result<std::unique_ptr<WeightLoader>> prepare(TensorFiles& files);
    Status load(const std::filesystem::path& folder, const LoadProgress& progress);
    Result<KernelSurvey> survey(TensorFiles& files);
    Status plan_memory_for(uint64_t weight_bytes, const TensorFiles& files, ScratchBytes& scratch_sizes);
    Status allocate(const ScratchBytes& scratch_sizes);
    Status upload_rope_tables();
    RopeTables ropes() const { return {rope_tables.address(), rope_offsets}; }
    SlotLookup slot_lookup() const {
        return [this](uint32_t slot) -> const SlotTraits& { return lora_table->traits(slot); };
    }
    StepShape shape_of(const StepBatch& batch) const;
    Result<StepBatch> profile_batch(const ProfileStep& what, std::span<const uint32_t> adapter_slots) const;
    Status record_pass(gpu::Recorder& recorder, const StepShape& shape, const MergedWeights* merged_weights);
    // these: of weight set 1
    Result<gpu::CommandBuffer> record_step(const StepShape& shape, bool timestamps,
                                           const MergedWeights* merged_weights);
    Result<gpu::CommandBuffer> record_whole_step(RingSlot& slot, const StepShape& shape);
    static std::optional<PersistentProgram> program_of(const StepShape& shape);
    void make_planner();
    std::vector<std::optional<Result<gpu::CommandBuffer>>> record_all(const std::vector<StepShape>& shapes);
    Status warm_up();
    Result<const gpu::CommandBuffer*> prelude(RingSlot& slot, uint64_t n_bytes);
    Result<const gpu::CommandBuffer*> mask_copy(RingSlot& slot, uint32_t n_masks);
    Result<const gpu::CommandBuffer*> epilogue(RingSlot& slot, bool logprobs);
    Status add_epilogues(const InFlight& step, std::vector<const gpu::CommandBuffer*>& recordings_in_order);
    void record_prelude(gpu::Recorder& recorder, RingSlot& slot, uint64_t n_bytes);
    void record_epilogue(gpu::Recorder& recorder, RingSlot& slot, bool logprobs);
    const gpu::CommandBuffer* find_recording(RecordingCache& cache, const StepShape& shape);
    Result<const gpu::CommandBuffer*> recording_of(const StepShape& shape);
    Result<const gpu::CommandBuffer*> whole_recording_of(RingSlot& slot, const StepShape& shape);
    Result<const gpu::CommandBuffer*> recording_for(InFlight& step);
    void tell_compiling(const StepShape& shape);
    void write_state(const StepBatch& batch, const InFlight& step);
    Status replay(InFlight& step, const gpu::CommandBuffer& recording);
    Status replay_draw(InFlight& step);
    Result<uint64_t> run(const StepBatch& batch, const StepShape& shape, const gpu::CommandBuffer* recording = nullptr);
    Status redo_in_flight();
    void forget_trials();
    // A step that is computed by a program and by separate dispatches: each sequence has a block of the cache to
    // itself.
    struct TrialStep {
        uint32_t n_sequences = 1;
        uint32_t n_tokens = 1;  // of each sequence
        uint32_t n_steps = 1;   // so often, one behind the other; the logits of the last one count
        bool has_adapter = false;
    };
    struct TrialWay {
        std::string name;  // in messages; empty: the program has but one
        LayerSchedule schedule = LayerSchedule::kSeparate;
        std::optional<AdapterMethod> method = {};  // else as planned
        uint32_t lora_type = gpu::kAnyLoraType;
    };
    struct Trial {
        TrialStep step;
        std::vector<TrialWay> ways;
    };
    struct ProgramTrials {
        std::vector<Trial> trials = {};
        uint32_t adapter_rank = 0;    // of the trial's adapter; 0: none
        bool must_be_faster = false;  // the first way of the first and of the last trial than separate dispatches
        std::string obstacle = {};    // why there can be no trial
    };
    struct TrialTimes {
        double separate_ms = 0, one_ms = 0;
    };
    gpu::ScalarType weight_type() const { return planner->weight_type(); }
    ProgramTrials trials_of(PersistentProgram program) const;
    Result<gpu::Buffer> put_trial_adapter(uint32_t rank);
    Status take_trial_adapter();
    Status trial_step(const TrialStep& step, const TrialWay& way, uint32_t position, bool wants_logits);
    Result<std::vector<float>> trial_logits(const TrialStep& step, const TrialWay& way);
    std::string difference(std::span<const float> got, std::span<const float> want) const;
    Result<std::string> fault_of(const Trial& trial, const GivenUp& given_up);
    Result<std::string> fault_of(const ProgramTrials& trials, const ProgramState& state);
    Result<TrialTimes> trial_times(const Trial& trial);
    std::string trial_key(PersistentProgram program) const;
    bool remembers_trial(PersistentProgram program);
    Status try_program(PersistentProgram program);
    Status try_programs();
    void free_retired() {
        std::erase_if(retired, [&](const Retired& r) { return r.until_step <= n_submitted - in_flight.size(); });
    }
};

}  // namespace lorad::model
