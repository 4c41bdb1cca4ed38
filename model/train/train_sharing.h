// Which jobs may be trained beside each other: the one place that says so, and why not.
#pragma once

#include <optional>
#include <string>

#include "model/train/train_memory.h"
#include "model/train/trainable.h"
#include "model/train/trainer.h"
#include "proto/base/result.h"

namespace lorad::model {

// What of an adapter has to be trained alone: everything but pairs on linear modules without magnitudes, whose
// gradients are sums over the rows of one job. None: it may be beside others.
std::optional<std::string> why_alone(const TrainableAdapter& adapter);

// Of passes that others are trained by.
struct SharedPasses {
    const TrainSizes& sizes;
    const TrainerOptions& options;  // of the job that they were made for
    std::optional<std::string> why_alone;
    gpu::ScalarType act_type = gpu::ScalarType::kF32;  // that the new job would have by itself
};
// kInvalidConfig with the reason. options: with the zeros filled in.
Status may_share_passes(const SharedPasses& passes, const TrainableAdapter& adapter, const TrainerOptions& options);

}  // namespace lorad::model
