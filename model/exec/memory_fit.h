// Says with its arithmetic if a model fits a device's memory, and which settings would make it fit. Capabilities and
// tensors' sizes are enough. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "gpu/kernels/kernels.h"
#include "model/exec/executor.h"
#include "model/exec/memory_plan.h"
#include "model/forward/scratch.h"
#include "model/step/step_planner.h"

namespace lorad::model {

// The model and the device that are asked about; the references outlive the calls below.
struct FitQuestion {
    const gpu::DeviceCapabilities& capabilities;
    uint64_t free_bytes = 0;
    const ModelConfig& config;
    const TensorFiles& files;  // as they lie there: ExecutorOptions::quantize is applied to a copy
};

struct Fit {
    MemoryPlan plan;
    ScratchBytes scratch;
    uint32_t n_positions_max = 0;  // served: as wished, or as many as fit
};

PlannerLimits planner_limits(const ExecutorOptions& options, const KvGroups& groups);
uint64_t rope_tables_bytes(const ModelConfig& config, uint32_t n_positions_max);

// Plans with weights whose sizes are known, as a load has them. Without a wish for the context it is shortened until
// the cache of one sequence fits, to 2048 tokens at least. kOutOfMemory has the arithmetic in its message. options:
// with the zeros filled in but for n_positions_max.
Result<Fit> fit(const gpu::KernelPlanner& kernels, const StepPlanner& planner, const ModelWeights& weights,
                uint64_t weight_bytes, const FitQuestion& question, const KvFormat& kv, const ExecutorOptions& options);
// Plans from the tensors on, with the kernels that the device's capabilities offer.
Result<Fit> fit(const FitQuestion& question, const ExecutorOptions& options);

struct Savings {
    std::string flags;  // "--kv-cache-dtype int8 --max-model-len 4096"
    ExecutorOptions options;
};
// Settings with which it fits, those that cost least first; none: no setting makes it fit.
std::optional<Savings> savings_that_fit(const FitQuestion& question, const ExecutorOptions& options);

}  // namespace lorad::model
