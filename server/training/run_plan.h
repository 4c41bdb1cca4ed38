// What a run does, from the recipe and the number of sequences: everything that was left to the server is chosen here,
// so that it can be shown before it begins. Pure.
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
    SampleOrder order;             // of the sequences that are trained on
    model::ScheduleSettings schedule;
    model::OptimizerSettings optimizer;
    uint64_t n_held_out = 0;   // sequences of the training file that are kept for evaluation
    uint32_t n_positions = 0;  // of the longest sequence, as far as whoever plans has said

    uint64_t n_steps() const { return schedule.n_steps; }
    // Of the training file, the sequence that sample order calls i, and the i-th that is held out.
    uint64_t trained_sequence(uint64_t i) const;
    uint64_t held_out_sequence(uint64_t i) const;
};

// kInvalidRequest where nothing is left to train on.
Result<RunPlan> plan_run(proto::TrainingRecipe recipe, uint64_t n_sequences);

// The adapter of the recipe, as adapters::make_trainable() takes it.
adapters::LoraRecipe lora_recipe(const proto::TrainingRecipe& recipe);

}  // namespace lorad::server::training
