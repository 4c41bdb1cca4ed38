#include "model/forward/forward_experts.h"

namespace lorad::model {

ExpertParts::ExpertParts(gpu::Recorder& recorder, const ForwardContext& context, const StepPlan& plan)
    : MixerParts(recorder, context, plan), places_(context.config, plan.shape.row_bucket) {
    hidden_rows_.n = config_.hidden_size;
    hidden_rows_.n_padded = hidden_stride();
}

void ExpertParts::clear_counts() {
    if (places_.experts_max != 0) recorder_.fill(scratch_.experts, places_.counts, places_.counts_bytes(), 0);
}

gpu::RouterShape ExpertParts::router_shape(const ExpertFacts& experts) const {
    const uint32_t rule = experts.router == Router::kTopThenSoftmax ? gpu::kTopThenSoftmax
                          : experts.router == Router::kSigmoidBias  ? gpu::kSigmoidBias
                                                                    : gpu::kSoftmaxThenTop;
    return {.experts = experts.n, .top = experts.top_k, .rule = rule, .normalises = experts.normalise};
}

gpu::ExpertPlan ExpertParts::product_plan(uint32_t layer) const {
    const LayerWeights& w = weights_.layers[layer];
    const ExpertFacts& facts = facts_[layer].ffn.experts;
    return kernels_.experts.plan(router_shape(facts),
                                 {.gate_up = 2 * facts.size,
                                  .down = config_.hidden_size,
                                  .gate_up_stride = w.expert_gate_up.k_stride,
                                  .down_stride = w.expert_down.k_stride,
                                  .gate_up_kind = w.expert_gate_up.kind(),
                                  .down_kind = w.expert_down.kind()},
                                 rows_);
}

ExpertParts::Product ExpertParts::experts(uint32_t layer, const Input& input) {
    if (facts_[layer].ffn.experts.shared_size != 0) shared_expert(layer, input);
    route(layer, input.rows);
    apply(layer, input.rows);
    return finished();
}

ExpertParts::Product ExpertParts::with_experts(uint32_t layer, const Product& down) {
    const LayerWeights& w = weights_.layers[layer];
    sum_to(layer, kDown, down, w.down, w.down_bias, at(places_.shared), config_.hidden_size);
    norm_stream(w.router_norm, w.router.type);
    route(layer, scratch_.xn.address());
    norm_stream(w.expert_norm, w.expert_gate_up.type);
    apply(layer, scratch_.xn.address());
    kernels_.rows.norm_pair(recorder_,
                            {.step = rows_state(),
                             .a = at(places_.shared),
                             .b = scratch_.y.address(),
                             .a_gamma = w.dense_after_norm.address(),
                             .b_gamma = w.expert_after_norm.address(),
                             .y = scratch_.y.address(),
                             .hidden = config_.hidden_size,
                             .a_stride = config_.hidden_size,
                             .b_stride = hidden_stride(),
                             .y_stride = hidden_stride(),
                             .eps = config_.rms_norm_eps,
                             .pad = 0},
                            rows_);
    recorder_.barrier();
    return finished();
}

void ExpertParts::norm_stream(const Vector& gamma, ScalarType weight_type) {
    kernels_.rows.rms_norm(recorder_,
                           {.n_rows = rows_state(),
                            .x = x_,
                            .gamma = gamma.address(),
                            .y = scratch_.xn.address(),
                            .y_fragments = 0,
                            .logit_rows = 0,
                            .step = step_,
                            .slot_norms = 0,
                            .norms = 0,
                            .hidden = config_.hidden_size,
                            .x_stride = hidden_stride(),
                            .y_stride = hidden_stride(),
                            .eps = config_.rms_norm_eps},
                           act_type(weight_type), rows_);
    recorder_.barrier();
}

ExpertParts::Product ExpertParts::finished() const {
    Product product{.has_adapters = true};
    product.plan.rows = rows_;
    product.plan.row_tile = 1;
    return product;
}

void ExpertParts::apply(uint32_t layer, DeviceAddress input) {
    const LayerWeights& w = weights_.layers[layer];
    const FfnFacts& ffn = facts_[layer].ffn;
    const ExpertFacts& facts = ffn.experts;
    const uint32_t n = 2 * facts.size;
    // Adapters add to the input of the activation, so the product cannot apply it.
    if (!shape_.has_adapters() && product_plan(layer).can_gate) {
        multiply_gated(layer, input);
    } else {
        multiply(layer, w.expert_gate_up, n, LinearModule::kExpertGateUp, input, facts.top_k);
        kernels_.experts.act(recorder_,
                             {.step = rows_state(),
                              .chosen = at(places_.chosen),
                              .y = at(places_.y),
                              .bias = address_of(w.expert_gate_up_bias),
                              .act = at(places_.act),
                              .y_stride = n,
                              .act_stride = w.expert_down.k_stride,
                              .ffn = facts.size,
                              .top = facts.top_k,
                              .alpha = ffn.clamp_alpha,
                              .limit = ffn.clamp_limit,
                              .pad = {}},
                             ffn.activation, ffn.clamp_limit != 0.0f, facts.gate_up_interleaved,
                             act_type(w.expert_down.type), rows_);
        recorder_.barrier();
    }
    multiply(layer, w.expert_down, config_.hidden_size, LinearModule::kExpertDown, at(places_.act), 1);
    const bool has_shared = facts.shared_size != 0;
    kernels_.experts.sum(recorder_,
                         {.step = rows_state(),
                          .chosen = at(places_.chosen),
                          .weights = at(places_.weights),
                          .y = at(places_.y),
                          .bias = address_of(w.expert_down_bias),
                          .shared_y = has_shared ? at(places_.shared) : 0,
                          .shared_gate = facts.shared_gate ? at(places_.gate) : 0,
                          .to = scratch_.y.address(),
                          .y_stride = config_.hidden_size,
                          .shared_stride = config_.hidden_size,
                          .gate_stride = 1,
                          .to_stride = hidden_stride(),
                          .hidden = config_.hidden_size,
                          .pad = 0},
                         facts.top_k, rows_);
    recorder_.barrier();
}

void ExpertParts::shared_expert(uint32_t layer, const Input& input) {
    const LayerWeights& w = weights_.layers[layer];
    const Input down_input{.plan = plan_.layers[layer].down, .rows = scratch_.act.address()};
    const Product gate_up =
        linear(layer, kGateUp, w.gate_up, {.plan = plan_.layers[layer].gate_up, .rows = input.rows});
    gated_act(layer, w, gate_up, down_input);
    const Product down = linear(layer, kDown, w.down, down_input);
    sum_to(layer, kDown, down, w.down, w.down_bias, at(places_.shared), config_.hidden_size);
    if (!facts_[layer].ffn.experts.shared_gate) return;
    const Product gate =
        linear(layer, kSharedGateGroup, w.shared_gate, {.plan = plan_.layers[layer].shared_gate, .rows = input.rows});
    sum_to(layer, kSharedGateGroup, gate, w.shared_gate, no_bias_, at(places_.gate), 1);
}

void ExpertParts::route(uint32_t layer, DeviceAddress input) {
    const LayerWeights& w = weights_.layers[layer];
    const ExpertFacts& facts = facts_[layer].ffn.experts;
    const gpu::RouterShape shape = router_shape(facts);
    const Product logits = linear(layer, kRouterGroup, w.router, {.plan = plan_.layers[layer].router, .rows = input});
    // Splits are summed on the way, where nothing else is to be added.
    const bool is_summed = logits.plan.whole_rows > 0 || consumer(logits).lora != gpu::LoraLevel::kNone;
    if (is_summed)
        sum_to(layer, kRouterGroup, logits, w.router, w.router_bias, at(places_.logits), places_.experts_max);
    kernels_.experts.route(recorder_,
                           {.step = rows_state(),
                            .logits = is_summed ? at(places_.logits) : scratch_.y.address(),
                            .logit_bias = is_summed ? 0 : address_of(w.router_bias),
                            .bias = w.choice_bias.address(),
                            .expert_scale = w.expert_scale.address(),
                            .chosen = at(places_.chosen),
                            .weights = at(places_.weights),
                            .counts = at(places_.counts_of(layer)),
                            .sorted = at(places_.sorted),
                            .n_tiles = at(places_.n_tiles),
                            .tiles = at(places_.tiles),
                            .stride = is_summed ? places_.experts_max : w.router.n_padded,
                            .split_stride = split_stride(w.router, logits.plan),
                            .sum_eps = facts.router == Router::kSigmoidBias ? 1e-6f : 0.0f,
                            .scale = facts.routed_scale},
                           shape, is_summed ? 1 : logits.plan.n_splits, rows_);
    recorder_.barrier();
    if (rows_ == 1) return;
    kernels_.experts.group(recorder_,
                           {.step = rows_state(),
                            .chosen = at(places_.chosen),
                            .counts = at(places_.counts_of(layer)),
                            .sorted = at(places_.sorted),
                            .n_tiles = at(places_.n_tiles),
                            .tiles = at(places_.tiles),
                            .tile_rows = 0,
                            .top = 0},
                           shape, product_plan(layer), rows_);
    recorder_.barrier();
}

// The experts' gate_up and the activation into places_.act.
void ExpertParts::multiply_gated(uint32_t layer, DeviceAddress x) {
    const LayerWeights& w = weights_.layers[layer];
    const FfnFacts& ffn = facts_[layer].ffn;
    kernels_.experts.product(recorder_,
                             {.sorted = at(places_.sorted),
                              .n_tiles = at(places_.n_tiles),
                              .tiles = at(places_.tiles),
                              .w = w.expert_gate_up.address(),
                              .x = x,
                              .y = at(places_.act),
                              .bias = address_of(w.expert_gate_up_bias),
                              .n = 2 * ffn.experts.size,
                              .w_stride = w.expert_gate_up.k_stride,
                              .y_stride = w.expert_down.k_stride,
                              .pairs_per_row = ffn.experts.top_k,
                              .alpha = ffn.clamp_alpha,
                              .limit = ffn.clamp_limit},
                             router_shape(ffn.experts), product_plan(layer), w.expert_gate_up.kind(), rows_,
                             gpu::ExpertGate{.activation = ffn.activation,
                                             .clamped = ffn.clamp_limit != 0.0f,
                                             .interleaved = ffn.experts.gate_up_interleaved});
    recorder_.barrier();
}

// One of the experts' two products into places_.y, with what adapters add to it.
void ExpertParts::multiply(uint32_t layer, const Matrix& w, uint32_t n, LinearModule module, DeviceAddress x,
                           uint32_t pairs_per_row) {
    const gpu::RouterShape shape = router_shape(facts_[layer].ffn.experts);
    kernels_.experts.product(recorder_,
                             {.sorted = at(places_.sorted),
                              .n_tiles = at(places_.n_tiles),
                              .tiles = at(places_.tiles),
                              .w = w.address(),
                              .x = x,
                              .y = at(places_.y),
                              .bias = 0,
                              .n = n,
                              .w_stride = w.k_stride,
                              .y_stride = n,
                              .pairs_per_row = pairs_per_row,
                              .alpha = 0,
                              .limit = 0},
                             shape, product_plan(layer), w.kind(), rows_);
    recorder_.barrier();
    if (!shape_.has_adapters()) return;
    kernels_.experts.lora(recorder_,
                          {.step = rows_state(),
                           .uses = step_ + layout_.uses,
                           .lora_layer = context_.lora_layer(layer),
                           .chosen = at(places_.chosen),
                           .x = x,
                           .y = at(places_.y),
                           .lora_slot_stride = context_.lora_slot_stride(),
                           .module = static_cast<uint32_t>(module),
                           .n = n,
                           .k = w.k,
                           .x_stride = w.k_stride,
                           .y_stride = n,
                           .top = shape.top,
                           .pairs_per_row = pairs_per_row},
                          shape_.lora, act_type(w.type), rows_);
    recorder_.barrier();
}

}  // namespace lorad::model
