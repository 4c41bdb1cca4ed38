// The daemon's StepRunner: model::Executor.
#pragma once

#include "model/executor.h"
#include "server/engine/step_runner.h"

namespace lorad::server {

class ExecutorRunner final : public StepRunner {
  public:
    explicit ExecutorRunner(model::Executor& executor) : executor_(executor) {}

    Status submit(const model::StepBatch& batch) override { return executor_.submit(batch); }
    Result<StepResult> finish() override {
        TRY_ASSIGN(model::StepOutput output, executor_.finish());
        StepResult result;
        result.n_dispatches = output.n_dispatches;
        result.logprobs = output.logprobs;
        result.argmax.assign(output.sampled.begin(), output.sampled.end());
        result.logits.reserve(output.sampled.size());
        for (uint32_t i = 0; i < output.sampled.size(); ++i)
            result.logits.push_back(output.logits(i));
        for (uint32_t i = 0; i < output.sampled.size(); ++i)
            result.hidden.push_back(output.hidden(i));
        return result;
    }

    std::span<uint32_t> masks() override { return executor_.masks(); }
    Result<bool> submit_draw() override { return executor_.submit_draw(); }

    void use_merged(std::shared_ptr<const model::MergedWeights> merged) override {
        executor_.use_merged(std::move(merged));
    }

  private:
    model::Executor& executor_;
};

}  // namespace lorad::server
