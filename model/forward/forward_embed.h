// The beginning of a recorded step: the rows' tokens become the residual stream. Internal to forward.cpp.
#pragma once

#include "gpu/command.h"
#include "model/forward/forward.h"
#include "model/step/step_shape.h"

namespace lorad::model {

// scratch.x of all rows, with what adapters change of the embedding in steps that have such ones. Ends with a barrier.
void record_embedding(gpu::Recorder& recorder, const ForwardContext& context, const StepShape& shape);

}  // namespace lorad::model
