#include "model/forward/forward_outputs.h"

#include <cstddef>

#include "model/forward/weight_products.h"

namespace lorad::model {

OutputPass::OutputPass(gpu::Recorder& recorder, const ForwardContext& context, const StepPlan& plan)
    : recorder_(recorder),
      kernels_(context.kernels),
      context_(context),
      scratch_(context.scratch),
      plan_(plan),
      shape_(plan.shape),
      layout_(plan.shape),
      step_(context.scratch.step_state.address()) {}

void OutputPass::last_tokens() const {
    kernels_.sampling.sample_last_tokens(recorder_, choice_params(), shape_.output_bucket);
}

void OutputPass::sample(gpu::DeviceAddress x, bool has_all_rows) const {
    const ModelConfig& config = context_.config;
    const Matrix& head = context_.weights.output();
    const gpu::DeviceAddress n_rows = step_ + offsetof(gpu::StepHeader, n_logit_rows);
    const gpu::MatmulPlan& plan = plan_.output;
    // Rows are what adapters and the host want; fragments lie beside them, see fragments_of().
    const gpu::DeviceAddress rows = scratch_.output_xn.address(),
                             fragments = plan.x_in_fragments ? fragments_of(scratch_.output_xn) : 0;
    kernels_.rows.rms_norm(recorder_,
                           {.n_rows = n_rows,
                            .x = x,
                            .gamma = context_.weights.final_norm.address(),
                            .y = rows,
                            .y_fragments = fragments,
                            .logit_rows = has_all_rows ? step_ + layout_.logit_rows : 0,
                            .step = step_,
                            .slot_norms = shape_.extras ? context_.lora_table.final_norm_address() : 0,
                            .norms = 0,
                            .hidden = config.hidden_size,
                            .x_stride = gpu::padded(config.hidden_size),
                            .y_stride = head.k_stride,
                            .eps = config.rms_norm_eps},
                           kernels_.act_type(head.type), shape_.output_bucket, plan.x_order);
    recorder_.barrier();
    const WeightProducts products(recorder_, context_, shape_.weight_set);
    gpu::MatmulParams product = matmul_params(head, products.plain(head, plan), fragments != 0 ? fragments : rows,
                                              scratch_.logits, plan, n_rows);
    const gpu::SampleArgmaxParams argmax{.n_logit_rows = n_rows,
                                         .logits = scratch_.logits.address(),
                                         .logit_rows = step_ + layout_.logit_rows,
                                         .sampled = scratch_.sampled.address(),
                                         .results = scratch_.results.address(),
                                         .host_logits = context_.host_logits,
                                         .partials = scratch_.sample_partials.address(),
                                         .vocab = config.vocab_size,
                                         .logits_stride = head.n_padded};
    if (plan.result == gpu::ProductResult::kGreatest) {
        product.n = config.vocab_size;
        kernels_.products.record(recorder_, plan, {.product = product, .partials = argmax.partials});
        recorder_.barrier();
        kernels_.sampling.sample_join(recorder_, argmax, plan.column_tiles(config.vocab_size), shape_.output_bucket);
        return;
    }
    products.multiply(head, plan, {.product = product});
    recorder_.barrier();
    if (shape_.extras) head_extras(head);
    if (config.logit_scale != 1.0f || config.final_softcap != 0.0f) {
        kernels_.sampling.scale_logits(recorder_,
                                       {.n_logit_rows = n_rows,
                                        .logits = scratch_.logits.address(),
                                        .vocab = config.vocab_size,
                                        .logits_stride = head.n_padded,
                                        .scale = config.logit_scale,
                                        .softcap = config.final_softcap},
                                       shape_.output_bucket);
        recorder_.barrier();
    }
    kernels_.sampling.sample_argmax(recorder_, argmax, shape_.output_bucket);
    if (shape_.rules && shape_.part == StepPart::kWhole) {
        // changes run beside the last part of the argmax, which reads no logits
        if (!shape_.changes) recorder_.barrier();
        choose_by_rules();
    }
}

gpu::SampleChoiceParams OutputPass::choice_params() const {
    return {.step = step_,
            .logit_rows = step_ + layout_.logit_rows,
            .rules = step_ + layout_.rules,
            .logits = scratch_.logits.address(),
            .sampled = scratch_.sampled.address(),
            .results = scratch_.results.address(),
            .logprobs = scratch_.logprobs.address(),
            .masks = shape_.part == StepPart::kDraw ? scratch_.masks.address() : 0,
            .vocab = context_.config.vocab_size,
            .logits_stride = context_.weights.output().n_padded};
}

void OutputPass::choose_by_rules() const {
    const gpu::SampleChoiceParams params = choice_params();
    if (shape_.changes) {
        kernels_.sampling.sample_changes(recorder_, params, shape_.output_bucket, false);
        recorder_.barrier();
    }
    kernels_.sampling.sample_draw(recorder_, params, shape_.output_bucket);
    if (!shape_.logprobs) return;
    recorder_.barrier();
    if (shape_.changes) {
        kernels_.sampling.sample_changes(recorder_, params, shape_.output_bucket, true);
        recorder_.barrier();
    }
    kernels_.sampling.sample_logprobs(recorder_, params, shape_.output_bucket);
}

// Applies the changes that adapters with their own weights for the output layer make to the logits.
void OutputPass::head_extras(const Matrix& head) const {
    kernels_.lora.head_extras(recorder_,
                              {.step = step_,
                               .logit_rows = step_ + layout_.logit_rows,
                               .uses = step_ + layout_.uses,
                               .extras = context_.lora_table.extras_address(),
                               .x = scratch_.output_xn.address(),
                               .logits = scratch_.logits.address(),
                               .low = scratch_.low.address(),
                               .k = head.k,
                               .x_stride = head.k_stride,
                               .logits_stride = head.n_padded,
                               .vocab = context_.config.vocab_size},
                              kernels_.act_type(head.type), shape_.output_bucket);
    recorder_.barrier();
}

}  // namespace lorad::model
