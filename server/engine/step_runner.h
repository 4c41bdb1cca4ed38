// What the engine needs of a device: run batches in order, say what came out. model::Executor in
// the daemon, a few lines of arithmetic in the tests.
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
    // By output; empty where not asked for; valid until the next finish.
    std::vector<std::span<const float>> logits;
    // By output, as logits; only where the output's rule asked there is something.
    std::span<const gpu::ChoiceLogprobs> logprobs;
    // By output, as logits: what the final norm makes of the row.
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
    // Of the oldest step in flight. Does next to nothing after its wait: the engine takes the time of it for the
    // device's (plan_ahead.h).
    virtual Result<StepResult> finish() = 0;
    // A batch with masks is only begun by submit(). They are then written, by any threads: one after
    // the other, all of one size, a bit for each token. submit_draw() lets the step's outputs be
    // chosen; before it nothing else is submitted or, of this step, finished. True where the device
    // had nothing left to do meanwhile.
    virtual std::span<uint32_t> masks() = 0;
    virtual Result<bool> submit_draw() = 0;
    // Recordings made so far. A submit() that makes one takes its time on the engine's thread, so what is in flight
    // seems to take longer, too.
    virtual uint64_t n_recordings() const { return 0; }
    // An error once the device is lost, also where that was found by others than this class. Any thread.
    virtual Status health() const { return ok_status(); }
    // What batches with set_merged() run on from the next submit on; null: there will be none.
    virtual void use_merged(std::shared_ptr<const model::MergedWeights> merged) = 0;
};

}  // namespace lorad::server
