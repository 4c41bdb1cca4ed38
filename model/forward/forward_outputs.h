// The end of a recorded step: final norm, logits, and the tokens that follow. Internal to forward.cpp.
#pragma once

#include "gpu/command.h"
#include "gpu/kernels/kernels.h"
#include "model/forward/forward.h"
#include "model/step/step_plan.h"
#include "model/step/step_state.h"

namespace lorad::model {

// Computes the rows whose next token is wanted. Letters as in gpu/kernels/kernels.h.
class OutputPass {
  public:
    OutputPass(gpu::Recorder& recorder, const ForwardContext& context, const StepPlan& plan);

    // Fetches the tokens chosen by the step before, which changes of logits need. Adds no barrier.
    void last_tokens() const;
    // Final norm, logits and argmax, then the tokens of outputs with rules. x: [T][H] f32 of all the step's rows, or of
    // those with outputs alone.
    void sample(gpu::DeviceAddress x, bool has_all_rows) const;
    // The tokens of outputs with rules, in the place of the argmax.
    void choose_by_rules() const;

  private:
    gpu::SampleChoiceParams choice_params() const;
    void head_extras(const Matrix& head) const;

    gpu::Recorder& recorder_;
    gpu::KernelSet& kernels_;
    const ForwardContext& context_;
    const Scratch& scratch_;
    const StepPlan& plan_;
    const StepShape& shape_;
    const StepLayout layout_;
    const gpu::DeviceAddress step_;
};

}  // namespace lorad::model
