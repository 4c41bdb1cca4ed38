// Runs steps of one loaded model on one device: rows in, next tokens (and logits where asked) out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "gpu/device.h"
#include "gpu/kernels/kernels.h"
#include "gpu/profiler.h"
#include "model/config/config.h"
#include "model/exec/memory_plan.h"
#include "model/quant/quantize.h"
#include "model/step/step_batch.h"
#include "model/step/step_shape.h"
#include "model/weights/lora_table.h"
#include "model/weights/weight_transform.h"
#include "model/weights/weights.h"
#include "proto/base/result.h"
#include "proto/generate/sampling_params.h"

namespace lorad::model {

struct ExecutorOptions {
    uint32_t n_rows_max = 2048;     // rows of one step
    uint32_t n_sequences_max = 64;  // sequences of one step
    uint32_t n_outputs_max = 0;     // outputs of one step; 0: n_sequences_max
    uint32_t n_positions_max = 0;   // context served; 0: the model's, or what fits the device's memory
    uint32_t n_adapter_slots = 1024;
    double memory_utilization = 0.9;  // share of the free device memory
    uint64_t adapter_bytes = 0;       // device memory left free for adapters
    uint64_t merged_bytes = 0;        // left free for merged weights, and all that they may take; 0: what is free then
    uint64_t training_bytes = 0;      // left free for training; 0: nothing is
    uint64_t kv_bytes_max = 0;        // 0: see MemoryPlanOptions
    uint32_t n_kv_blocks = 0;         // not 0: exactly these
    std::optional<uint64_t> snapshot_bytes_max = 0;  // see MemoryPlanOptions
    // whoever makes the batches keeps to memory_plan().groups: StepBatch::window_blocks
    bool may_group_kv = false;
    // what all matrices become; without one: WeightLoader::create()
    std::optional<gpu::ScalarType> weight_type = std::nullopt;
    bool keeps_packed = true;  // WeightOptions
    // matrices of 16 and 32 bits become this while they are loaded
    std::optional<QuantizeType> quantize = std::nullopt;
    gpu::KvType kv_type = gpu::KvType::kF16;
    gpu::KernelPath kernel_path = gpu::KernelPath::kAuto;
    gpu::Tuning tuning = gpu::Tuning::kOff;      // of products without matrix units
    uint32_t tuned_tiles_max = gpu::kTiledForm;  // for tests: TuningOptions::tiles_max
    bool lora_on_matrices = true;                // this and the next: KernelSetOptions, to compare in benchmarks
    uint32_t expand_rows = 8;
    uint32_t one_dispatch_context_max = kOneDispatchContextMax;   // beyond, attention has dispatches of its own
    gpu::PersistentDecode decode = gpu::PersistentDecode::kAuto;  // this and the next: KernelSetOptions
    uint32_t decode_workgroups = 0;
    std::vector<std::string> left_out_kernels = {};  // KernelSetOptions::left_out
    std::vector<std::string> refused_kernels = {};   // for tests: KernelSetOptions::refused
    // for tests: this step, counted from 1, ends as if its grid barrier had timed out
    uint64_t decode_fault_step = 0;
    bool batch_invariant = false;  // a row's bits never depend on what else is in its step
    // record the usual steps while the weights are loaded, so that no pipeline is compiled
    bool warm_up = false;
    // while a request waits
};

// Answers of one finished step; spans are valid until the next finish().
struct StepOutput {
    // [n_outputs] by the output's rule, or the argmax; -1 where a logit was not finite; gpu::kNothingAllowed
    std::span<const int32_t> sampled;
    std::span<const float> max_logits;    // [n_outputs]
    std::span<const float> log_sum_exps;  // [n_outputs]; log-probability of the argmax = max_logit - log_sum_exp
    std::span<const float> all_logits;    // [n_outputs][vocab]; only rows that were asked for hold anything
    uint32_t vocab_size = 0;
    std::span<const gpu::ChoiceLogprobs> logprobs;  // [n_outputs]; only what a rule asked for holds anything
    // [n_outputs][hidden] after the final norm; only outputs with want_hidden hold anything
    std::span<const float> all_hidden;
    uint32_t hidden_size = 0;
    uint32_t n_dispatches = 0;  // kernels that the step ran, those that bring its state and its answers among them

    // The output must have been added with want_logits.
    std::span<const float> logits(uint32_t output) const {
        return all_logits.subspan(size_t{output} * vocab_size, vocab_size);
    }
    // The output must have want_hidden; empty for others if no output of the step had it.
    std::span<const float> hidden(uint32_t output) const {
        return all_hidden.empty() ? all_hidden : all_hidden.subspan(size_t{output} * hidden_size, hidden_size);
    }
};

// The kernels that a device has made for the usual steps of a model.
struct KernelSurvey {
    std::vector<gpu::KernelReport> kernels;  // those of tests at the start are not among them
    gpu::KernelLadder ladder;
    std::string weight_formats;
    MemoryPlan plan;
    uint32_t n_positions_max = 0;
    size_t n_steps = 0;
    std::vector<std::string> failures;  // why steps could not be recorded, each reason once
};

// One thread (the engine's), unless said otherwise. Steps run in the order of submit(); finish() answers the oldest
// unfinished one. Up to two steps may be in flight, so that the next one can be built and submitted while one runs: its
// rows may name the running step's outputs as tokens (StepBatch::add_fed_back_row).
class Executor {
  public:
    // Checks the tensors of a folder or GGUF file (ModelFiles::open()) against `config`, plans the memory, uploads and
    // makes everything ready.
    static Result<std::unique_ptr<Executor>> load(gpu::Device& device, const std::filesystem::path& folder,
                                                  const ModelConfig& config, const ExecutorOptions& options,
                                                  const LoadProgress& progress = {});
    // Makes every kernel of the steps that a start records in advance, as load() does, for a model of which no weights
    // are read (ModelFiles::tensors(), or WeightLoader::imagine() where there are none). `device` only compiles
    // (gpu::DeviceOptions::compile_only). Steps that cannot be recorded are told, not an error.
    static Result<KernelSurvey> survey(gpu::Device& device, TensorFiles files, const ModelConfig& config,
                                       const ExecutorOptions& options);
    ~Executor();
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    // The batch must keep to the options' limits (CHECK): it comes from our scheduler, not from a client.
    // kDeviceLost is final.
    Status submit(const StepBatch& batch);
    // A batch with masks is only begun by submit(): all of it but the choices of its outputs runs. The masks are then
    // written, by any threads, and submit_draw() lets the outputs be chosen; before that nothing else is submitted, and
    // the step is not finished.
    // The masks of that step, n_masks() times mask_words(), to be written whole. Bit id % 32 of word id / 32 is set if
    // the token is allowed.
    std::span<uint32_t> masks();
    // True where the device had come to the end of what was submitted, and had to wait for this.
    Result<bool> submit_draw();
    Result<StepOutput> finish();
    uint32_t n_in_flight() const;

    // Any thread, while steps go on: see WeightTransform. The slots are leased, and their weights have arrived.
    Status finish_gains(const AdapterView& adapter);
    Result<std::shared_ptr<const MergedWeights>> merge(std::span<const LoraUse> uses);

    // From the next submit() on, batches with StepBatch::set_merged run on these weights; null: no batch may be merged.
    // Steps in flight keep what they were submitted with.
    void use_merged(std::shared_ptr<const MergedWeights> merged);

    const ModelConfig& config() const;
    const ModelWeights& weights() const;     // the pristine ones
    const ExecutorOptions& options() const;  // with the zeros filled in, and the kernel path that was chosen
    const MemoryPlan& memory_plan() const;
    uint32_t n_kv_blocks() const;
    uint32_t n_snapshots() const;  // slots of recurrent state behind those of n_sequences_max sequences
    LoraTable& lora_table();
    uint64_t n_recordings() const;  // made so far: replays make none
    // a step of one row, with one adapter of few ranks at most: it passed its trial and nobody has given up since
    bool decodes_in_one_dispatch() const;
    // the same for steps of 2 (packed: 1) to kDecodeRowsMax rows without adapters: one dispatch between two layers'
    // attentions
    bool decodes_rows_together() const;
    // Steps of 33 to 64 rows have gate and up with their rows' adapters in one product.
    bool gates_adapters() const;

    // Decode rows that each see n_context positions, or the rows of one prompt, or decode rows and n_chunk rows of a
    // prompt before them.
    struct ProfileStep {
        uint32_t n_rows = 1, n_context = 1;
        bool is_prompt = false;
        uint32_t n_chunk = 0;
        proto::SamplingParams sampling{.temperature = 0.0f};  // of decode rows
    };
    // Describes how such a step is computed, for people: schedule, products, attention, adapters, output.
    Result<std::string> describe_step(const ProfileStep& step, std::span<const uint32_t> adapter_slots) const;
    // Times each kernel of a step with made-up contents in blocks of the KV cache: only while nothing else runs. With
    // adapter slots decode rows are dealt to them in runs; a prompt has the first.
    Result<std::vector<gpu::KernelProfile>> profile(const ProfileStep& step, std::span<const uint32_t> adapter_slots,
                                                    uint32_t n_repeats);

  private:
    struct Impl;
    explicit Executor(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace lorad::model
