#include "model/forward/forward_parts.h"

#include <algorithm>
#include <cmath>

#include "model/forward/forward_outputs.h"

namespace lorad::model {

PassParts::PassParts(gpu::Recorder& recorder, const ForwardContext& context, const StepPlan& plan)
    : recorder_(recorder),
      kernels_(context.kernels),
      config_(context.config),
      weights_(context.weights),
      scratch_(context.scratch),
      context_(context),
      plan_(plan),
      shape_(plan.shape),
      layout_(plan.shape),
      step_(context.scratch.step_state.address()),
      rows_(plan.shape.row_bucket),
      x_(context.scratch.x.address()),
      attention_(context.scratch.attention.address()),
      method_(plan.shape.method),
      adapters_(recorder, context, plan.shape),
      products_(recorder, context, plan.shape.weight_set) {
    for (uint32_t layer = 0; layer < config_.n_layers; ++layer) facts_.push_back(config_.layer(layer));
}

PassParts::Input PassParts::input_of(const gpu::MatmulPlan& plan, const gpu::Buffer& buffer) const {
    if (!plan.x_in_fragments) return {.plan = plan, .rows = buffer.address()};
    const bool reads_rows = shape_.has_adapters() && method_ != AdapterMethod::kStacked;
    return {.plan = plan, .rows = reads_rows ? buffer.address() : 0, .fragments = fragments_of(buffer)};
}

PassParts::Input PassParts::attention_input(const Matrix& o, const LayerPlan& plan) {
    if (plan.o_input == InputForm::kRows) return {.plan = plan.o, .rows = attention_};
    const DeviceAddress fragments = fragments_of(scratch_.attention);
    if (plan.o_input == InputForm::kArranged) {
        kernels_.products.arrange_fragments(
            recorder_,
            {.n_rows = rows_state(), .rows = attention_, .fragments = fragments, .stride = o.k_stride, .pad = 0}, rows_,
            plan.o.x_order);
        recorder_.barrier();
    }
    return {.plan = plan.o, .rows = attention_, .fragments = fragments};
}

PassParts::NextNorm PassParts::input_norm(uint32_t layer, const Input& to) const {
    const LayerWeights& w = weights_.layers[layer];
    return {w.input_norm.address(), context_.slot_norms(shape_, layer, LoraTable::Norm::kInput), w.qkv.type, to};
}

PassParts::NextNorm PassParts::ffn_norm(uint32_t layer, const Input& to) const {
    const LayerWeights& w = weights_.layers[layer];
    return {w.ffn_norm.address(), context_.slot_norms(shape_, layer, LoraTable::Norm::kFfn),
            facts_[layer].ffn.kind == FeedForward::kExperts ? w.router.type : w.gate_up.type, to};
}

gpu::ConsumerShape PassParts::consumer(const Product& product) const {
    return {.rows = rows_,
            .n_splits = product.plan.n_splits,
            .lora = product.has_adapters ? gpu::LoraLevel::kNone : shape_.lora,
            .few_runs = method_ == AdapterMethod::kFewRuns,
            .whole_rows = product.plan.whole_rows};
}

void PassParts::norm_first(const Input& to) {
    const NextNorm first = input_norm(0, {});
    kernels_.rows.rms_norm(recorder_,
                           {.n_rows = step_ + offsetof(gpu::StepHeader, n_rows),
                            .x = scratch_.x.address(),
                            .gamma = first.gamma,
                            .y = scratch_.xn.address(),
                            .y_fragments = to.fragments,
                            .logit_rows = 0,
                            .step = step_,
                            .slot_norms = first.slot_norms,
                            .norms = plan_.defers_norms ? scratch_.norms.address() : 0,
                            .hidden = config_.hidden_size,
                            .x_stride = hidden_stride(),
                            .y_stride = hidden_stride(),
                            .eps = config_.rms_norm_eps},
                           act_type(first.weight_type), shape_.row_bucket, to.plan.x_order);
    recorder_.barrier();
}

// Returns true if kernels other than its consumer may add the adapters to a group's product: they take up to three
// modules, with borders at whole vectors.
static bool is_added_apart(LoraGroup group, const Matrix& w) {
    return group < kDenseGroups || group == kDeltaOutGroup || (group == kConvInGroup && w.n % 4 == 0) ||
           group == kConvOutGroup;
}

PassParts::Product PassParts::linear(uint32_t layer, LoraGroup group, const Matrix& w, const Input& x) {
    gpu::MatmulPlan plan = x.plan;
    if (plan.adapters == gpu::AdapterForm::kRuns && !is_added_apart(group, w)) plan.adapters = gpu::AdapterForm::kApart;
    gpu::ProductArguments arguments = arguments_of(w, x, scratch_.y);
    if (plan.adapters == gpu::AdapterForm::kApart) return linear_apart(layer, group, w, x, plan, arguments);
    add_adapters(layer, group, w, x, plan.adapters, arguments);
    products_.multiply(w, plan, arguments);
    recorder_.barrier();
    return {plan, true};
}

void PassParts::add_adapters(uint32_t layer, LoraGroup group, const Matrix& w, const Input& x, gpu::AdapterForm form,
                             gpu::ProductArguments& arguments) {
    switch (form) {
        case gpu::AdapterForm::kApart: return;
        case gpu::AdapterForm::kStacked:
            adapters_.stack(layer, group, x.fragments, w, rows_);
            arguments.stacked = adapters_.stacked(group);
            return;
        case gpu::AdapterForm::kRuns:
            adapters_.shrink(layer, group, x.rows, w, rows_, gpu::ShrinkPlace::kFirst);
            recorder_.barrier();
            arguments.runs = adapters_.runs(layer, group);
            return;
        case gpu::AdapterForm::kInside:
            arguments.prefetch = next_weights(layer, group);
            arguments.inside = {.x_rows = x.rows,
                                .lora_layer = context_.lora_layer(layer),
                                .low = scratch_.low.address(),
                                .sync = context_.gated_lora->sync(),
                                .given_up = context_.gated_lora->given_up().address(),
                                .lora_slot_stride = context_.lora_slot_stride()};
            return;
    }
}

PassParts::Product PassParts::linear_apart(uint32_t layer, LoraGroup group, const Matrix& w, const Input& x,
                                           const gpu::MatmulPlan& plan, gpu::ProductArguments& arguments) {
    CHECK(method_ != AdapterMethod::kStacked);  // whose shrinks write for products alone
    arguments.prefetch = next_weights(layer, group);
    const gpu::ShrinkPlace place = gpu::shrink_place(plan);
    if (place == gpu::ShrinkPlace::kFirst) adapters_.shrink(layer, group, x.rows, w, rows_, place);
    products_.multiply(w, plan, arguments);
    if (place == gpu::ShrinkPlace::kBehindProduct) adapters_.shrink(layer, group, x.rows, w, rows_, place);
    recorder_.barrier();
    if (method_ != AdapterMethod::kExpanded || !is_added_apart(group, w)) return {plan, false};
    adapters_.expand(layer, group, w);
    recorder_.barrier();
    return {plan, true};
}

gpu::PrefetchPages PassParts::next_weights(uint32_t layer, LoraGroup group) const {
    if (shape_.lora == gpu::LoraLevel::kNone) return {};
    const LayerWeights& w = weights_.layers[layer];
    switch (group) {
        case kQkv: return pages_to_prefetch(w.o);
        case kO: return pages_to_prefetch(w.gate_up);
        case kGateUp: return pages_to_prefetch(w.down);
        case kDown:
            return pages_to_prefetch(layer + 1 < config_.n_layers ? weights_.layers[layer + 1].qkv : weights_.output());
        default: return {};
    }
    return {};
}

void PassParts::gated_product(uint32_t layer, const LayerWeights& w, const Input& x, const Input& act) {
    gpu::ProductArguments arguments = arguments_of(w.gate_up, x, scratch_.act);
    arguments.product.y = act.rows;
    arguments.product.y_fragments = act.fragments;
    arguments.product.n = w.down.k;
    arguments.product.y_stride = w.down.k_stride;
    arguments.y_order = act.plan.x_order;
    add_adapters(layer, kGateUp, w.gate_up, x, x.plan.adapters, arguments);
    kernels_.products.record(recorder_, x.plan, arguments);
    recorder_.barrier();
}

gpu::ProductArguments PassParts::arguments_of(const Matrix& w, const Input& x, const gpu::Buffer& y) const {
    return {.product = matmul_params(w, products_.plain(w, x.plan), x.of_product(), y, x.plan, rows_state()),
            .norm = {.norms = scratch_.norms.address(),
                     .hidden = config_.hidden_size,
                     .eps = config_.rms_norm_eps,
                     .n_tiles = x.norm_tiles}};
}

void PassParts::residual(const Matrix& w, const gpu::MatmulPlan& plan, DeviceAddress input, const Vector& bias,
                         const Vector& gamma, Input& next) {
    next.norm_tiles = plan.column_tiles(w.n);
    gpu::ProductArguments arguments = arguments_of(w, {.plan = plan, .rows = input}, scratch_.y);
    arguments.residual = {.bias = address_of(bias),
                          .stream = x_,
                          .gamma = gamma.address(),
                          .xn = next.rows,
                          .norms = scratch_.norms.address(),
                          .stream_stride = hidden_stride(),
                          .xn_stride = hidden_stride()};
    kernels_.products.record(recorder_, plan, arguments);
    recorder_.barrier();
}

void PassParts::add_norm(uint32_t layer, LoraGroup group, const Product& product, const Matrix& w, const Vector& bias,
                         const Vector& after, const NextNorm& norm) {
    const LayerFacts& facts = facts_[layer];
    const bool ends_layer = group == (facts.per_layer_input != 0 ? kPleProjectionGroup : kDown);
    // An adapter's own weights for the norm behind lie in front of those for the next one; embeddings per layer have
    // none.
    const bool may_have_own = shape_.extras && group != kPleProjectionGroup;
    const gpu::Closing closing{.multiplier = group == kPleProjectionGroup ? 1.0f : facts.residual_multiplier,
                               .stream_scale = ends_layer ? weights_.layers[layer].stream_scale : 1.0f,
                               .n_after_slots = may_have_own && after.n != 0 ? context_.lora_table.n_slots() : 0,
                               .raw = norm.gamma == 0 && norm.to.of_product() != 0};
    kernels_.rows.add_norm(
        recorder_,
        {.step = rows_state(),
         .y = scratch_.y.address(),
         .bias = address_of(bias),
         .low = scratch_.low.address(),
         .lora_layer = context_.lora_layer(layer),
         .uses = step_ + layout_.uses,
         .x = x_,
         .gamma = norm.gamma,
         .slot_norms = may_have_own && norm.slot_norms == 0 ? next_slot_norms(layer, group) : norm.slot_norms,
         .xn = norm.to.rows,
         .xn_fragments = norm.to.fragments,
         .lora_slot_stride = context_.lora_slot_stride(),
         .lora_module = static_cast<uint32_t>(kModuleRanges[group].first),
         .hidden = config_.hidden_size,
         .y_stride = w.n_padded,
         .split_stride = split_stride(w, product.plan),
         .x_stride = hidden_stride(),
         .xn_stride = hidden_stride(),
         .eps = config_.rms_norm_eps,
         .after_gamma = after.address()},
        consumer(product), act_type(norm.weight_type), norm.to.plan.x_order, closing);
    recorder_.barrier();
}

gpu::DeviceAddress PassParts::next_slot_norms(uint32_t layer, LoraGroup group) const {
    if (group != kDown) return context_.lora_table.norms_address(layer, LoraTable::Norm::kFfn);
    return layer + 1 < config_.n_layers ? context_.lora_table.norms_address(layer + 1, LoraTable::Norm::kInput)
                                        : context_.lora_table.final_norm_address();
}

void PassParts::per_layer_inputs() {
    const Matrix& model = weights_.ple_model;
    const Input input{.plan = plan_.ple_model, .rows = scratch_.xn.address()};
    kernels_.rows.rms_norm(recorder_,
                           {.n_rows = step_ + offsetof(gpu::StepHeader, n_rows),
                            .x = scratch_.x.address(),
                            .gamma = 0,
                            .y = input.rows,
                            .y_fragments = 0,
                            .logit_rows = 0,
                            .step = step_,
                            .slot_norms = 0,
                            .norms = 0,
                            .hidden = config_.hidden_size,
                            .x_stride = hidden_stride(),
                            .y_stride = hidden_stride(),
                            .eps = config_.rms_norm_eps},
                           act_type(model.type), shape_.row_bucket);
    recorder_.barrier();
    const Product product = linear(0, kPleModelGroup, model, input);
    finish(0, kPleModelGroup, product, model);
    kernels_.rows.ple_rows(recorder_,
                           {.step = step_,
                            .y = scratch_.y.address(),
                            .gamma = weights_.ple_model_norm.address(),
                            .table = weights_.ple_table.buffer.address(),
                            .sampled = scratch_.sampled.address(),
                            .ple = scratch_.ple.address(),
                            .n = facts_[0].per_layer_input,
                            .y_stride = model.n_padded,
                            .table_stride = weights_.ple_table.k_stride,
                            .ple_stride = model.n_padded,
                            .vocab = config_.per_layer_vocab,
                            .y_scale = 1.0f / std::sqrt(static_cast<float>(config_.hidden_size)),
                            .eps = config_.rms_norm_eps,
                            .pad = 0},
                           weights_.ple_table.type, config_.n_layers, shape_.row_bucket);
    recorder_.barrier();
}

void PassParts::per_layer_part(uint32_t layer, const Input& input, const NextNorm& next) {
    const LayerWeights& w = weights_.layers[layer];
    const LayerPlan& plan = plan_.layers[layer];
    Product gate = linear(layer, kPleGateGroup, w.ple_gate, input);
    if (shape_.has_adapters() && !gate.has_adapters) gate = finish(layer, kPleGateGroup, gate, w.ple_gate);
    gpu::ConsumerShape shape = consumer(gate);
    shape.lora = gpu::LoraLevel::kNone;
    kernels_.rows.ple_gate(
        recorder_,
        {.step = rows_state(),
         .y = scratch_.y.address(),
         .ple = scratch_.ple.address() + uint64_t{layer} * facts_[layer].per_layer_input * sizeof(float),
         .act = scratch_.act.address(),
         .n = w.ple_gate.n,
         .y_stride = w.ple_gate.n_padded,
         .split_stride = split_stride(w.ple_gate, gate.plan),
         .ple_stride = weights_.ple_model.n_padded,
         .act_stride = w.ple_projection.k_stride,
         .pad = 0},
        shape, act_type(w.ple_projection.type));
    recorder_.barrier();
    const Product projection = linear(layer, kPleProjectionGroup, w.ple_projection,
                                      {.plan = plan.ple_projection, .rows = scratch_.act.address()});
    add_norm(layer, kPleProjectionGroup, projection, w.ple_projection, no_bias_, w.ple_norm, next);
}

PassParts::Product PassParts::finish(uint32_t layer, LoraGroup group, Product product, const Matrix& w) {
    gpu::FinishSumsParams params{.step = rows_state(),
                                 .y = scratch_.y.address(),
                                 .bias = 0,
                                 .low = scratch_.low.address(),
                                 .lora_layer = context_.lora_layer(layer),
                                 .uses = step_ + layout_.uses,
                                 .gamma = {0, 0},
                                 .slot_norms = 0,
                                 .lora_slot_stride = context_.lora_slot_stride(),
                                 .first_module = static_cast<uint32_t>(kModuleRanges[group].first),
                                 .n_modules = 1,
                                 .y_stride = w.n_padded,
                                 .split_stride = split_stride(w, product.plan),
                                 .n_slots = 0,
                                 .eps = 0,
                                 .module_end = {w.n, 0, 0, 0},
                                 .pad = 0};
    kernels_.rows.finish_sums(recorder_, params, consumer(product));
    recorder_.barrier();
    product.plan.n_splits = 1;
    product.has_adapters = true;
    return product;
}

void PassParts::gated_act(uint32_t layer, const LayerWeights& w, const Product& product, const Input& act) {
    kernels_.rows.gated_act(recorder_,
                            {.step = rows_state(),
                             .y = scratch_.y.address(),
                             .bias = address_of(w.gate_up_bias),
                             .low = scratch_.low.address(),
                             .lora_layer = context_.lora_layer(layer),
                             .uses = step_ + layout_.uses,
                             .act = act.rows,
                             .act_fragments = act.fragments,
                             .lora_slot_stride = context_.lora_slot_stride(),
                             .ffn = w.down.k,
                             .y_stride = w.gate_up.n_padded,
                             .split_stride = split_stride(w.gate_up, product.plan),
                             .act_stride = w.down.k_stride},
                            consumer(product), facts_[layer].ffn.activation, act_type(w.down.type), act.plan.x_order);
    recorder_.barrier();
}

}  // namespace lorad::model
