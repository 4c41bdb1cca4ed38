#include "model/forward/forward_embed.h"

namespace lorad::model {

void record_embedding(gpu::Recorder& recorder, const ForwardContext& context, const StepShape& shape) {
    const Matrix& table = context.weights.embedding;
    const gpu::DeviceAddress step = context.scratch.step_state.address();
    const gpu::WeightKind kind = table.kind();
    const uint32_t x_stride = gpu::padded(context.config.hidden_size);
    if (shape.extras) {
        context.kernels.lora.embed_extras(recorder,
                                          {.step = step,
                                           .uses = step + StepLayout(shape).uses,
                                           .extras = context.lora_table.extras_address(),
                                           .table = table.address(),
                                           .sampled = context.scratch.sampled.address(),
                                           .x = context.scratch.x.address(),
                                           .hidden = context.config.hidden_size,
                                           .table_stride = table.k_stride,
                                           .x_stride = x_stride,
                                           .vocab = context.config.vocab_size,
                                           .scale = context.config.embed_scale,
                                           .pad = 0},
                                          kind, shape.row_bucket);
    } else {
        context.kernels.rows.embed(recorder,
                                   {.step = step,
                                    .table = table.address(),
                                    .sampled = context.scratch.sampled.address(),
                                    .x = context.scratch.x.address(),
                                    .hidden = context.config.hidden_size,
                                    .table_stride = table.k_stride,
                                    .x_stride = x_stride,
                                    .vocab = context.config.vocab_size,
                                    .scale = context.config.embed_scale},
                                   kind, shape.row_bucket);
    }
    recorder.barrier();
}

}  // namespace lorad::model
