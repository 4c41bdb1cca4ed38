// Plans a run from the recipe and the number of sequences: makes all choices that were left to the server, so that they
// can be shown before the run begins. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "adapters/plan/trainable.h"
#include "model/train/schedule.h"
#include "model/train/trainer.h"
#include "proto/training/fine_tuning_request.h"
#include "server/training/sample_order.h"

namespace lorad::server::training {

inline constexpr double kUsualLearningRate = 2e-4;

struct RunPlan {
    proto::TrainingRecipe recipe;  // with nothing left to choose but checkpoint_steps
    SampleOrder order;             // of the sequences to train on
    model::ScheduleSettings schedule;
    model::OptimizerSettings optimizer;
    uint64_t n_held_out = 0;   // sequences of the training file that are kept for evaluation
    uint32_t n_positions = 0;  // the longest sequence, if the planner has set it
    uint64_t owner = 0;        // whose job it is: owners share the device

    uint64_t n_steps() const { return schedule.n_steps; }
    // Return indices in the training file: of sequence i in sample order, and of the i-th held-out one.
    uint64_t trained_sequence(uint64_t i) const;
    uint64_t held_out_sequence(uint64_t i) const;
};

// kInvalidRequest where nothing is left to train on.
Result<RunPlan> plan_run(proto::TrainingRecipe recipe, uint64_t n_sequences);

// The adapter of the recipe, as adapters::make_trainable() takes it.
adapters::LoraRecipe lora_recipe(const proto::TrainingRecipe& recipe);

}  // namespace lorad::server::training
