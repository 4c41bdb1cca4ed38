// A trainer's own state: what it trains, and how far the step or evaluation is that it has begun.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/kernels/train/train_kernels.h"
#include "model/config/config.h"
#include "model/train/micro_batch.h"
#include "model/train/train_memory.h"
#include "model/train/train_pass.h"
#include "model/train/train_slot.h"
#include "model/train/trainer.h"
#include "proto/base/result.h"

namespace lorad::model {

// Micro-batches of up to so many rows give the same bits beside any other rows; with more there is little to gain.
inline constexpr uint32_t kTrainSharedRows = 256;

// One thread at a time.
struct TrainJob {
    // The work that the job waits for. kNorm and kUpdate follow when a step's micro-batches are all done.
    enum class Phase : uint8_t { kIdle, kBatches, kNorm, kUpdate, kDone };

    // The work that was begun: a step is gradients and an update by them.
    enum class Work : uint8_t { kStep, kEvaluation, kGradients, kUpdate };

    // Errors as Trainer::begin_step() and begin_gradients() have them. The last argument is of steps.
    Status begin(const ModelConfig& config, const TrainSizes& sizes, std::vector<TrainExample> of, Work of_kind,
                 double rate);
    // By the gradients that were added up.
    void begin_update(double rate);
    bool has_backward() const { return work == Work::kStep || work == Work::kGradients; }
    // Returns true if the micro-batch is the first whose gradients count.
    bool clears_gradients() const { return has_backward() && batch_idx == 0 && !adds_gradients; }
    void abandon();

    const MicroBatch& batch() const { return batches[batch_idx]; }
    bool may_share_batch() const { return !why_alone && batch().n_rows() <= kTrainSharedRows; }
    TrainDropout dropout() const;
    // losses: of its targets of the micro-batch.
    void end_batch(const gpu::TrainLoss* losses, bool is_shared);
    gpu::TrainGradNormParams norm_params() const;
    void end_norm();
    gpu::TrainAdamwParams update_params() const;
    void end_update();

    TrainableAdapter shape;  // without values
    TrainerOptions options;
    TrainMemory memory;
    std::unique_ptr<TrainSlot> slot;
    uint64_t slot_bytes = 0;
    std::optional<std::string> why_alone;  // train_sharing.h
    uint64_t n_steps = 0;
    uint64_t n_gradient_tokens = 0;  // by which they are divided
    uint64_t last_round = 0;         // jobs take turns by it

    Phase phase = Phase::kIdle;
    Work work = Work::kStep;
    bool has_gradients = false;   // of Work::kGradients, which no update has used
    bool adds_gradients = false;  // to those, by the work under way
    double learning_rate = 0;
    std::vector<MicroBatch> batches;
    size_t batch_idx = 0;
    std::vector<bool> has_own_targets;  // of each example
    double clip = 1.0;
    TrainReport report;
};

}  // namespace lorad::model
