// What the engine needs of a device: run a batch, say what came out. model::Executor in the daemon, a few lines of
// arithmetic in the tests.
#pragma once

#include <span>
#include <vector>

#include "model/step_batch.h"
#include "proto/base/result.h"

namespace lorad::server {

struct StepResult {
    std::vector<TokenId> argmax;                  // by output; -1 where a logit was not finite
    std::vector<std::span<const float>> logits;   // by output; empty where not asked for; valid until the next submit
};

class StepRunner {
  public:
    virtual ~StepRunner() = default;
    // Engine thread only, strictly in turn: submit, finish, submit, ... An error of either is final: the device is
    // not used again.
    virtual Status submit(const model::StepBatch& batch) = 0;
    virtual Result<StepResult> finish() = 0;
};

}  // namespace lorad::server
