// The feed-forward of experts, between the norm in front of it and the sum that closes the layer. Internal to
// forward.cpp.
#pragma once

#include "model/forward/forward_mixers.h"
#include "model/weights/expert_places.h"

namespace lorad::model {

class ExpertParts : protected MixerParts {
  protected:
    ExpertParts(gpu::Recorder& recorder, const ForwardContext& context, const StepPlan& plan);

    // When a step begins; a barrier follows before the first layer.
    void clear_counts();
    // The output of the layer's experts and its shared expert for the input's rows, as a finished product: split 0 of
    // scratch.y.
    Product experts(uint32_t layer, const Input& input);
    // The same of a layer with both, whose dense half ends with this product: the sum of the norms of what both give.
    // x_ is what they read, and xn is used up.
    Product with_experts(uint32_t layer, const Product& down);

    Matrix hidden_rows_;  // the shape of a row of the residual stream, for what closes a layer behind experts()

  private:
    // Computes, from the rows, the shared expert's output without its gate, and the gate's logit.
    void shared_expert(uint32_t layer, const Input& input);
    void route(uint32_t layer, DeviceAddress input);
    // The norm of the residual stream with these weights, for a matrix of this type, in xn.
    void norm_stream(const Vector& gamma, ScalarType weight_type);
    // Leaves the experts' results for the rows of the input, and the shared expert's for its own, in split 0 of
    // scratch.y.
    void apply(uint32_t layer, DeviceAddress input);
    Product finished() const;
    void multiply_gated(uint32_t layer, DeviceAddress x);
    void multiply(uint32_t layer, const Matrix& w, uint32_t n, LinearModule module, DeviceAddress x,
                  uint32_t pairs_per_row);
    DeviceAddress at(uint64_t place) const { return scratch_.experts.address() + place; }
    gpu::ExpertPlan product_plan(uint32_t layer) const;
    gpu::RouterShape router_shape(const ExpertFacts& experts) const;

    const ExpertPlaces places_;
};

}  // namespace lorad::model
