// The output layer over the rows whose next token is trained, some hundred at a time: logits of the whole vocabulary
// are never there for all rows.
#include <algorithm>

#include "model/train/train_pass.h"

namespace lorad::model {

using gpu::TrainDirection;
using gpu::TrainMatrix;

void TrainPass::head(gpu::Recorder& recorder, const TrainRows& rows, bool with_gradients) const {
    const TrainBuffers& buffers = context_.buffers;
    const TrainParameters& parameters = context_.parameters;
    const auto n_targets = static_cast<uint32_t>(rows.batch.target_rows.size());
    if (with_gradients)
        recorder.fill(buffers.dstream, 0, uint64_t{rows.batch.n_rows()} * sizes_.hidden_stride * sizeof(float), 0);
    if (n_targets == 0) {
        kernels_.barrier(recorder);
        return;
    }
    gpu::TrainNormParams norm{.x = stream(config_.n_layers),
                              .gamma = gamma(context_.weights.final_norm, context_.model.final_norm),
                              .y = buffers.head_normed.address(),
                              .dy = buffers.dhead_normed.address(),
                              .dx = buffers.dstream.address(),
                              .terms = context_.model.final_norm ? buffers.terms.address() : 0,
                              .rows = rows.tables_at + rows.tables.target_rows,
                              .hidden = config_.hidden_size,
                              .x_stride = sizes_.hidden_stride,
                              .y_stride = sizes_.hidden_stride,
                              .eps = config_.rms_norm_eps};
    kernels_.norm(recorder, TrainDirection::kForward, norm, n_targets);
    const TrainMatrix w = context_.model.head ? parameters.matrix(parameters.layout().wholes[*context_.model.head])
                                              : plain(recorder, context_.weights.output());
    kernels_.barrier(recorder);
    for (uint32_t first = 0; first < n_targets; first += sizes_.chunk_rows)
        head_chunk(recorder, rows, w, first, std::min(sizes_.chunk_rows, n_targets - first), with_gradients);
    if (!with_gradients) return;
    kernels_.norm(recorder, TrainDirection::kBackward, norm, n_targets);
    kernels_.barrier(recorder);
    if (!context_.model.final_norm) return;
    kernels_.column_sums(recorder, {.to = parameters.gradient(parameters.layout().wholes[*context_.model.final_norm]),
                                    .a = norm.terms,
                                    .n_columns = config_.hidden_size,
                                    .n_parts = 1,
                                    .rows = n_targets,
                                    .a_stride = sizes_.hidden_stride});
    kernels_.barrier(recorder);
}

void TrainPass::head_chunk(gpu::Recorder& recorder, const TrainRows& rows, const TrainMatrix& w, uint32_t first,
                           uint32_t n_rows, bool with_gradients) const {
    const TrainBuffers& buffers = context_.buffers;
    const TrainParameters& parameters = context_.parameters;
    const bool is_trained = context_.model.head.has_value();
    const TrainedPlace whole = is_trained ? parameters.layout().wholes[*context_.model.head] : TrainedPlace{};
    const uint64_t row_bytes = uint64_t{sizes_.hidden_stride} * sizeof(float);
    const TrainMatrix x{buffers.head_normed.address() + first * row_bytes, sizes_.hidden_stride},
        dx{buffers.dhead_normed.address() + first * row_bytes, sizes_.hidden_stride};
    const TrainMatrix logits{buffers.logits.address(), sizes_.vocab_stride};
    const TrainedPairPlaces& pair = parameters.layout().head;
    const TrainMatrix low{buffers.head_low.address(), round_up(pair.rank, 8)},
        dlow{low.address + uint64_t{sizes_.n_rows} * low.stride * sizeof(float), low.stride};
    const uint32_t vocab = config_.vocab_size, hidden = config_.hidden_size;

    kernels_.product(recorder, {.a = x,
                                .b = w,
                                .c = logits,
                                .m = n_rows,
                                .n = vocab,
                                .k = hidden,
                                .is_padded = !is_trained,
                                .has_few_rows = rows.has_few,
                                .name = "head"});
    if (pair.rank != 0) {
        kernels_.product(recorder,
                         {.a = x, .b = parameters.matrix(pair.a), .c = low, .m = n_rows, .n = pair.rank, .k = hidden});
        kernels_.barrier(recorder);
        kernels_.product(recorder, {.a = low,
                                    .b = parameters.matrix(pair.b),
                                    .c = logits,
                                    .m = n_rows,
                                    .n = vocab,
                                    .k = pair.rank,
                                    .alpha = pair.scale,
                                    .adds = true});
    }
    kernels_.barrier(recorder);
    kernels_.cross_entropy(recorder,
                           {.logits = logits.address,
                            .targets = rows.tables_at + rows.tables.targets + first * sizeof(gpu::TrainTarget),
                            .losses = buffers.losses.address() + first * sizeof(gpu::TrainLoss),
                            .vocab = vocab,
                            .stride = logits.stride},
                           with_gradients, n_rows);
    kernels_.barrier(recorder);
    if (!with_gradients) return;
    kernels_.product(recorder, {.a = logits,
                                .b = w,
                                .c = dx,
                                .b_has_rows_of_k = true,
                                .m = n_rows,
                                .n = hidden,
                                .k = vocab,
                                .is_padded = !is_trained,
                                .has_few_rows = rows.has_few,
                                .name = "head back"});
    if (is_trained) {
        kernels_.product(recorder, {.a = logits,
                                    .b = x,
                                    .c = parameters.gradient_matrix(whole),
                                    .a_has_rows_of_k = true,
                                    .b_has_rows_of_k = true,
                                    .m = vocab,
                                    .n = hidden,
                                    .k = n_rows,
                                    .adds = true});
    }
    if (pair.rank != 0) {
        kernels_.product(recorder, {.a = logits,
                                    .b = parameters.matrix(pair.b),
                                    .c = dlow,
                                    .b_has_rows_of_k = true,
                                    .m = n_rows,
                                    .n = pair.rank,
                                    .k = vocab,
                                    .alpha = pair.scale});
        kernels_.product(recorder, {.a = logits,
                                    .b = low,
                                    .c = parameters.gradient_matrix(pair.b),
                                    .a_has_rows_of_k = true,
                                    .b_has_rows_of_k = true,
                                    .m = vocab,
                                    .n = pair.rank,
                                    .k = n_rows,
                                    .alpha = pair.scale,
                                    .adds = true});
        kernels_.barrier(recorder);
        kernels_.product(recorder, {.a = dlow,
                                    .b = x,
                                    .c = parameters.gradient_matrix(pair.a),
                                    .a_has_rows_of_k = true,
                                    .b_has_rows_of_k = true,
                                    .m = pair.rank,
                                    .n = hidden,
                                    .k = n_rows,
                                    .adds = true});
        kernels_.product(recorder, {.a = dlow,
                                    .b = parameters.matrix(pair.a),
                                    .c = dx,
                                    .b_has_rows_of_k = true,
                                    .m = n_rows,
                                    .n = hidden,
                                    .k = pair.rank,
                                    .adds = true});
    }
    kernels_.barrier(recorder);
}

}  // namespace lorad::model
