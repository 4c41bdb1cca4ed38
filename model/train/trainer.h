// Trains an adapter beside a frozen base model on one device: loss, gradients of all trained tensors, AdamW.
//
// The loss of a step is the sum of weight[t] * cross entropy of token t over all examples, divided once by the number
// of tokens whose weight is not 0. Gradients can also be added up over calls, without division, until an update. How
// examples are put together to micro-batches changes no result beyond rounding; the same calls on the same device give
// the same bits.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "gpu/profiler.h"
#include "model/config/config.h"
#include "model/train/trainable.h"
#include "model/weights/weights.h"
#include "proto/base/ids.h"
#include "proto/base/result.h"

namespace lorad::model {

// One sequence, which attends to itself alone.
struct TrainExample {
    std::vector<TokenId> tokens;
    // [tokens.size()]: of token t's loss, which is predicted from the tokens before it; 0: not trained. weights[0]
    // counts as 0
    std::vector<float> weights;
    // [tokens.size()], or empty: what is predicted behind token t, with its loss's weight in weights[t]; then the
    // report has the log-probability of each, whatever its weight.
    std::vector<TokenId> targets;
    // [tokens.size()], or empty; with targets: the log-probabilities that they were sampled with. Then the loss of
    // target t is -weight * exp(log-probability - sampled[t]): importance sampling, with the advantage as weight.
    std::vector<float> sampled;
};

// AdamW as PyTorch computes it, one group for all tensors.
struct OptimizerSettings {
    double beta1 = 0.9, beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0.0;
    double max_grad_norm = 0.0;  // gradients are multiplied by min(1, max_grad_norm / (norm + 1e-6)); 0: never
};

struct TrainerOptions {
    OptimizerSettings optimizer;
    // tokens of a micro-batch; an example that is longer has one of its own. 0: as many as keep the device busy, which
    // the model's shape says
    uint32_t n_rows = 0;
    // tokens of the longest example; 0: n_rows, or the model's context where that is shorter
    uint32_t n_positions_max = 0;
    // share of the inputs of each pair's A that a step leaves out, each other time; evaluations leave out none
    float lora_dropout = 0.0f;
    uint64_t seed = 0;  // of what is left out
    // inputs of products are kept in the weights' 16-bit type also where that is no faster; for tests
    bool keeps_16_bits = false;
    bool in_f32 = false;  // products round nothing to the weights' 16-bit type, which is slower
    // device memory that the trainer may take beside the weights; 0: nine tenths of what is free
    uint64_t memory_bytes = 0;
    uint64_t owner = 0;  // owners take turns, then the trainers of each
    // of such adapters as this one that memory is left for beside it, as far as layers may be computed again instead
    uint32_t n_beside = 0;
};

// The device memory that a trainer is going to take.
struct TrainMemory {
    uint64_t parameters = 0;   // values, gradients and moments: 16 bytes each
    uint64_t activations = 0;  // kept for the backward pass
    uint64_t scratch = 0;
    // whose activations are kept; those of the others are computed again in the backward pass
    uint32_t n_kept_layers = 0;
    uint64_t sum() const { return parameters + activations + scratch; }
};

struct ExampleLoss {
    double loss_sum = 0.0;                 // of weight * cross entropy
    uint32_t n_trained = 0;                // tokens whose weight is not 0
    uint32_t n_correct = 0;                // of those the most probable
    std::vector<float> log_probabilities;  // of the example's targets
};

struct TrainReport {
    double loss = 0.0;       // sum over all examples / n_trained_tokens; without division where gradients are added
    double grad_norm = 0.0;  // of the divided gradients, before clipping; 0 in evaluations
    bool is_clipped = false;
    bool is_applied = false;  // false: a loss or gradient was not finite, and nothing was changed; and without update
    uint64_t n_trained_tokens = 0, n_tokens = 0;
    uint32_t n_micro_batches = 0;
    uint32_t n_shared = 0;              // of them those with rows of others beside
    std::vector<ExampleLoss> examples;  // in the order given
};

// One thread at a time, which is that of all trainers beside it too. Takes turns on the compute queue with whoever else
// submits to it. All that the constructor is given but the adapter outlives the trainer.
class Trainer {
  public:
    // The memory that create() would take on such a device. kInvalidConfig, as create() says it.
    static Result<TrainMemory> plan_memory(const gpu::DeviceCapabilities& capabilities, const ModelConfig& config,
                                           const ModelWeights& weights, const TrainableAdapter& adapter,
                                           const TrainerOptions& options, uint64_t free_bytes);
    // kInvalidConfig: the model has a part, or the adapter a form, that is not trained, by name; tensors of other
    // shapes than the model asks for.
    // kOutOfMemory: with the arithmetic.
    static Result<std::unique_ptr<Trainer>> create(gpu::Device& device, const ModelConfig& config,
                                                   const ModelWeights& weights, const TrainableAdapter& adapter,
                                                   const TrainerOptions& options);
    // One whose passes are those of `other`, which may end before it: its own are the trained numbers and what pairs
    // add. kInvalidConfig: why the two are not trained beside each other (train_sharing.h), or as create() says it;
    // kOutOfMemory.
    static Result<std::unique_ptr<Trainer>> create_beside(const Trainer& other, const TrainableAdapter& adapter,
                                                          const TrainerOptions& options);
    ~Trainer();
    Trainer(const Trainer&) = delete;
    Trainer& operator=(const Trainer&) = delete;

    // One optimizer step. kInvalidRequest: an example without tokens, longer than n_positions_max, with tokens beyond
    // the vocabulary, weights that are not finite or of another number; or no trained token at all.
    Result<TrainReport> step(std::span<const TrainExample> examples, double learning_rate);
    // Losses only.
    Result<TrainReport> evaluate(std::span<const TrainExample> examples);

    // The same in pieces: begin, then run_piece() until it says true, then finish(). A piece is a part of a layer's
    // pass of one micro-batch.
    Status begin_step(std::vector<TrainExample> examples, double learning_rate);
    Status begin_evaluation(std::vector<TrainExample> examples);
    // Adds the gradients of the examples' losses, summed and not divided, to those that are there since the last
    // update. Errors as begin_step(), but that every weight may be 0. A loss that is not finite, or abandon(), forgets
    // them all.
    Status begin_gradients(std::vector<TrainExample> examples);
    // AdamW by what was added up, which is forgotten then. Without any it goes by zeros. kInvalidConfig: the settings.
    Status begin_update(const OptimizerSettings& optimizer, double learning_rate);
    bool has_gradients() const;  // that begin_gradients() has added, and no update has used
    // Runs pieces until `budget` is used up, at least one. True: all are done. Returns when the device has finished
    // them. A piece that takes longer than the budget is cut into parts, of which one counts as a piece then; no bit
    // depends on it.
    Result<bool> run_piece(std::chrono::microseconds budget);
    // The same for several beside each other, all busy, until one is done: true. Micro-batches of few rows are computed
    // together, and give each trainer the bits that it has by itself; those of many rows take turns, their owners
    // first. What fails abandons all.
    // Without `waits` what comes next is only submitted, behind what the device has to do: the next call waits for it.
    static Result<bool> run_together(std::span<Trainer* const> trainers, std::chrono::microseconds budget,
                                     bool waits = true);
    // The same of one trainer, without waiting.
    Result<bool> start_piece(std::chrono::microseconds budget);
    // Waits for what start_piece() or run_together() has submitted; this one or others beside it may be done then. For
    // before abandon() where its numbers are used further: the last piece of a step changes them.
    Status settle();
    // How long the device has worked for this trainer and those beside it, as far as it was waited for.
    double device_seconds() const;
    Result<TrainReport> finish();
    // Gives up what was begun; gradients of its finished parts are forgotten.
    void abandon();
    bool is_busy() const;
    bool is_done() const;  // finish() is next

    // The adapter with its tensors' present values; its names and order are those of create().
    Result<TrainableAdapter> adapter() const;
    // The last step's gradients, divided but not clipped, in the order of TrainableAdapter::tensors().
    Result<std::vector<TrainedTensor>> gradients() const;

    // Everything that later steps depend on: values, moments, steps made. restore() of it in a trainer of the same
    // adapter's shapes goes on with the same bits. Not while busy.
    Result<std::vector<std::byte>> checkpoint() const;
    // kInvalidRequest: not a checkpoint of such an adapter; nothing is changed then.
    Status restore(std::span<const std::byte> checkpoint);
    // Forgets moments and steps made, as if the values were a start. Not while busy.
    Status reset_optimizer();

    // The time of each kernel of a step at rate 0, slowest first: for benchmarks. It counts as a step.
    Result<std::vector<gpu::KernelProfile>> profile(std::span<const TrainExample> examples);
    // The same of one step of each beside each other.
    static Result<std::vector<gpu::KernelProfile>> profile_together(
        std::span<const std::unique_ptr<Trainer>> trainers, std::span<const std::vector<TrainExample>> examples);

    uint64_t n_steps() const;  // optimizer steps applied
    const TrainMemory& memory() const;
    const TrainerOptions& options() const;  // with the zeros filled in

  private:
    struct Impl;
    explicit Trainer(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace lorad::model
