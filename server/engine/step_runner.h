// The engine's interface to a device: runs batches in order and returns the results. model::Executor in the daemon, a
// few lines of arithmetic in the tests.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/step/step_batch.h"
#include "model/weights/weight_transform.h"
#include "proto/base/result.h"

namespace lorad::server {

struct StepResult {
    // By output: what its rule chose, else the argmax; -1 where a logit was not finite.
    std::vector<TokenId> argmax;
    // By output; empty if not requested; valid until the next finish.
    std::vector<std::span<const float>> logits;
    // By output, like logits; filled only if the output's rule asked for it.
    std::span<const gpu::ChoiceLogprobs> logprobs;
    // By output, like logits: the row after the final norm.
    std::vector<std::span<const float>> hidden;
    uint32_t n_dispatches = 0;  // kernels that the step ran; 0 where there is no such thing
};

class StepRunner {
  public:
    virtual ~StepRunner() = default;
    // Engine thread only. Up to two steps may be in flight: rows of the younger may name outputs of
    // the older as their tokens (StepBatch::add_fed_back_row). Steps run in order. An error of
    // either call is final, the device is not used again; but for submit's kOutOfMemory and kKernelRefused, which say
    // that there was no memory to make this step, or a kernel that the driver does not make: nothing of it was run,
    // those in flight go on, and others may follow.
    virtual Status submit(const model::StepBatch& batch) = 0;
    // Waits for the oldest step in flight. It must do next to nothing after its wait: the engine takes the time of its
    // return for the end of the step on the device (plan_ahead.h).
    virtual Result<StepResult> finish() = 0;
    // submit() only begins a batch with masks. Any threads then write the masks: one after the other, all of one size,
    // a bit for each token. submit_draw() lets the step's outputs be chosen; before it no other step is submitted, and
    // this one is not finished. True if the device had run out of work meanwhile.
    virtual std::span<uint32_t> masks() = 0;
    virtual Result<bool> submit_draw() = 0;
    // Recordings made so far. A submit() that makes one takes its time on the engine's thread, so what is in flight
    // seems to take longer, too.
    virtual uint64_t n_recordings() const { return 0; }
    // An error once the device is lost, even if others than this class found that. Any thread.
    virtual Status health() const { return ok_status(); }
    // Sets the weights for batches with set_merged() from the next submit on; null: there will be no such batches.
    virtual void use_merged(std::shared_ptr<const model::MergedWeights> merged) = 0;
};

}  // namespace lorad::server
