// The feed-forward of experts, between the norm in front of it and the sum that closes the layer. Internal to forward.cpp.
#pragma once

#include "model/expert_places.h"
#include "model/forward_mixers.h"

namespace lorad::model {

class ExpertParts : protected MixerParts {
  protected:
    ExpertParts(gpu::Recorder& recorder, const ForwardContext& context, const StepPlan& plan);

    // When a step begins; a barrier follows before the first layer.
    void clear_counts();
    // What the layer's experts and its shared expert give for the rows of the input, as a finished product of its own: split 0 of scratch.y.
    Product experts(uint32_t layer, const Input& input);

    Matrix hidden_rows_;  // the shape of a row of the residual stream, for what closes a layer behind experts()

  private:
    // From the rows to what the shared expert gives, without its gate, and to the logit of that.
    void shared_expert(uint32_t layer, const Input& input);
    void route(uint32_t layer, const Input& input);
    void multiply(uint32_t layer, const Matrix& w, uint32_t n, LinearModule module, DeviceAddress x, uint32_t pairs_of_a_row);
    DeviceAddress at(uint64_t place) const { return scratch_.experts.address() + place; }
    gpu::RouterShape router_shape(const ExpertFacts& experts) const;

    const ExpertPlaces places_;
};

}  // namespace lorad::model
