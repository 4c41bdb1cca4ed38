// The trainer's interface to a run. model::Trainer in the product, a few lines of arithmetic in tests.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "model/train/trainer.h"
#include "proto/base/result.h"

namespace lorad::server::training {

// The calls and their meaning are model::Trainer's. One thread at a time.
class StepTrainer {
  public:
    virtual ~StepTrainer() = default;
    virtual Status begin_step(std::vector<model::TrainExample> examples, double learning_rate) = 0;
    virtual Status begin_evaluation(std::vector<model::TrainExample> examples) = 0;
    virtual Status begin_gradients(std::vector<model::TrainExample> examples) = 0;
    virtual Status begin_update(const model::OptimizerSettings& optimizer, double learning_rate) = 0;
    virtual Result<bool> run_piece(std::chrono::microseconds budget) = 0;
    virtual Result<bool> start_piece(std::chrono::microseconds budget) = 0;
    virtual Status settle() { return ok_status(); }
    virtual double device_seconds() const = 0;
    virtual bool is_done() const = 0;
    virtual Result<model::TrainReport> finish() = 0;
    virtual void abandon() = 0;
    virtual Result<model::TrainableAdapter> adapter() const = 0;
    virtual Result<std::vector<std::byte>> checkpoint() const = 0;
    virtual Status restore(std::span<const std::byte> checkpoint) = 0;
    virtual Status reset_optimizer() = 0;
    virtual uint64_t device_bytes() const = 0;
    virtual model::Trainer* of_model() { return nullptr; }  // null: it shares nothing with others
};

std::unique_ptr<StepTrainer> step_trainer_of(std::unique_ptr<model::Trainer> trainer);

// Pieces of trainers that have each begun something, until one is done: true. What fails ends what all have begun.
// Without `waits` they are only submitted: the next call waits for them.
Result<bool> run_pieces_of(std::span<StepTrainer* const> trainers, std::chrono::microseconds budget, bool waits);

}  // namespace lorad::server::training
