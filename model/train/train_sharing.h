// Decides which jobs may be trained beside each other: the one place that says so, and why not.
#pragma once

#include <optional>
#include <string>

#include "model/train/train_memory.h"
#include "model/train/trainable.h"
#include "model/train/trainer.h"
#include "proto/base/result.h"

namespace lorad::model {

// Says which part of an adapter has to be trained alone: all but pairs on linear modules and on the output layer
// without magnitudes, whose gradients are sums over one job's rows. nullopt: other jobs may be beside it.
std::optional<std::string> why_alone(const TrainableAdapter& adapter);

// Passes by which other jobs are trained.
struct SharedPasses {
    const TrainSizes& sizes;
    const TrainerOptions& options;  // of the job that they were made for
    std::optional<std::string> why_alone;
    gpu::ScalarType act_type = gpu::ScalarType::kF32;  // that the new job would have by itself
};
// kInvalidConfig with the reason. options: with the zeros filled in.
Status may_share_passes(const SharedPasses& passes, const TrainableAdapter& adapter, const TrainerOptions& options);

}  // namespace lorad::model
