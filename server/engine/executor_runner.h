// The daemon's StepRunner: model::Executor.
#pragma once

#include "gpu/queue.h"
#include "model/exec/executor.h"
#include "server/engine/step_runner.h"

namespace lorad::server {

class ExecutorRunner final : public StepRunner {
  public:
    // With `queue`, the queue that steps run on, losses that others find are seen as well.
    explicit ExecutorRunner(model::Executor& executor, const gpu::Queue* queue = nullptr)
        : executor_(executor), queue_(queue) {}

    Status submit(const model::StepBatch& batch) override { return executor_.submit(batch); }
    Result<StepResult> finish() override {
        TRY_ASSIGN(model::StepOutput output, executor_.finish());
        StepResult result;
        result.n_dispatches = output.n_dispatches;
        result.logprobs = output.logprobs;
        result.argmax.assign(output.sampled.begin(), output.sampled.end());
        result.logits.reserve(output.sampled.size());
        for (uint32_t i = 0; i < output.sampled.size(); ++i) result.logits.push_back(output.logits(i));
        for (uint32_t i = 0; i < output.sampled.size(); ++i) result.hidden.push_back(output.hidden(i));
        return result;
    }

    std::span<uint32_t> masks() override { return executor_.masks(); }
    Result<bool> submit_draw() override { return executor_.submit_draw(); }
    uint64_t n_recordings() const override { return executor_.n_recordings(); }
    Status health() const override { return queue_ == nullptr ? ok_status() : queue_->health(); }

    void use_merged(std::shared_ptr<const model::MergedWeights> merged) override {
        executor_.use_merged(std::move(merged));
    }

  private:
    model::Executor& executor_;
    const gpu::Queue* const queue_;
};

}  // namespace lorad::server
