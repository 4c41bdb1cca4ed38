// The choosing half of the engine: from the outputs of a finished step to one token for each
// sequence. The engine's thread owns it; the work is shared by a few threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/sampler.h"
#include "server/engine/parallel_for.h"
#include "server/engine/request.h"
#include "server/engine/step_runner.h"

namespace lorad::server {

// One output of a step that becomes a token of a sequence.
struct TokenChoice {
    const Request* request = nullptr;
    uint32_t output = 0;    // index in the step's outputs
    uint32_t position = 0;  // of the token that is chosen
};

// Whether the device's argmax is the answer, so that the next step may begin before it is known
// here and no logits have to be copied to the host.
inline bool device_chooses(const Request& request) { return request.sampling.greedy(); }

class TokenChooser {
  public:
    explicit TokenChooser(uint32_t n_threads);  // the caller's own included

    // Replaces the device's argmax in `result` where it is not the answer; -1, logits that are not
    // finite, stays.
    void choose(std::span<const TokenChoice> choices, StepResult& result);

  private:
    ParallelFor threads_;
    std::vector<model::SamplerScratch> scratch_;  // by worker
    std::vector<const TokenChoice*> to_sample_;
};

}  // namespace lorad::server
