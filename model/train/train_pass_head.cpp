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
    const bool has_pairs = std::ranges::any_of(
        rows.jobs, [](const TrainJobRows& job) { return job.slot->parameters->layout().head.rank != 0; });
    for (const TargetChunk& chunk : target_chunks(rows.batch.parts, sizes_.chunk_rows, has_pairs)) {
        const HeadAt at = head_at(rows, w, chunk.first, chunk.n_rows);
        head_chunk(recorder, at, with_gradients);
        if (with_gradients) head_chunk_backward(recorder, at);
    }
    if (!with_gradients) return;
    kernels_.norm(recorder, TrainDirection::kBackward, norm, n_targets);
    kernels_.barrier(recorder);
    if (!context_.model.final_norm) return;
    kernels_.column_sums(recorder, {.to = parameters.gradient(parameters.layout().wholes[*context_.model.final_norm]),
                                    .a = norm.terms,
                                    .n_columns = config_.hidden_size,
                                    .n_parts = 1,
                                    .rows = n_targets,
                                    .a_stride = sizes_.hidden_stride,
                                    .b_stride = 0,
                                    .scale = 1.0f});
    kernels_.barrier(recorder);
}

TrainPass::HeadAt TrainPass::head_at(const TrainRows& rows, const TrainMatrix& w, uint32_t first,
                                     uint32_t n_rows) const {
    const TrainBuffers& buffers = context_.buffers;
    const TrainLayout& places = context_.parameters.layout();
    const uint64_t row_bytes = uint64_t{sizes_.hidden_stride} * sizeof(float);
    HeadAt at{.rows = rows, .w = w, .first = first, .n_rows = n_rows};
    if (context_.model.head) at.whole = places.wholes[*context_.model.head];
    at.x = {buffers.head_normed.address() + first * row_bytes, sizes_.hidden_stride};
    at.dx = {buffers.dhead_normed.address() + first * row_bytes, sizes_.hidden_stride};
    at.logits = {buffers.logits.address(), sizes_.vocab_stride};
    for (const TrainJobRows& job : rows.jobs) {
        const TrainedPairPlaces& pair = job.slot->parameters->layout().head;
        const uint32_t begin = std::max(first, job.part.first_target),
                       end = std::min(first + n_rows, job.part.first_target + job.part.n_targets);
        if (pair.rank == 0 || begin >= end) continue;
        HeadPairAt own{.parameters = *job.slot->parameters, .pair = pair, .n_rows = end - begin};
        const auto from = [&](const TrainMatrix& matrix) {
            return TrainMatrix{matrix.address + uint64_t{begin - first} * matrix.stride * sizeof(float), matrix.stride};
        };
        own.x = from(at.x);
        own.dx = from(at.dx);
        own.logits = from(at.logits);
        own.low = {job.slot->head_low.address(), round_up(pair.rank, 8)};
        own.dlow = {own.low.address + uint64_t{job.slot->sizes.n_rows} * own.low.stride * sizeof(float),
                    own.low.stride};
        own.drops = job.dropout.p > 0;
        if (own.drops) {
            const uint64_t first_key = rows.tables.target_keys + begin * sizeof(MicroBatch::RowKey);
            own.dropout = dropout_params(job.dropout, rows.tables_at + first_key, config_.hidden_size,
                                         static_cast<uint32_t>(job.slot->parameters->layout().linears.size()));
            own.left = {job.slot->dropped.address(), own.x.stride};
            own.dropout.x_stride = own.dropout.to_stride = own.x.stride;
        }
        at.pairs.push_back(own);
    }
    return at;
}

void TrainPass::head_chunk(gpu::Recorder& recorder, const HeadAt& at, bool with_gradients) const {
    const uint32_t vocab = config_.vocab_size, hidden = config_.hidden_size;
    kernels_.product(recorder, {.a = at.x,
                                .b = at.w,
                                .c = at.logits,
                                .m = at.n_rows,
                                .n = vocab,
                                .k = hidden,
                                .is_padded = !at.whole,
                                .has_few_rows = at.rows.has_few,
                                .name = "head"});
    drop_inputs(recorder, at);
    for (const HeadPairAt& own : at.pairs)
        kernels_.product(recorder, {.a = own.input(),
                                    .b = own.parameters.matrix(own.pair.a),
                                    .c = own.low,
                                    .m = own.n_rows,
                                    .n = own.pair.rank,
                                    .k = hidden});
    if (!at.pairs.empty()) kernels_.barrier(recorder);
    for (const HeadPairAt& own : at.pairs)
        kernels_.product(recorder, {.a = own.low,
                                    .b = own.parameters.matrix(own.pair.b),
                                    .c = own.logits,
                                    .m = own.n_rows,
                                    .n = vocab,
                                    .k = own.pair.rank,
                                    .alpha = own.pair.scale,
                                    .adds = true});
    kernels_.barrier(recorder);
    const TrainRows& rows = at.rows;
    kernels_.cross_entropy(recorder,
                           {.logits = at.logits.address,
                            .targets = rows.tables_at + rows.tables.targets + at.first * sizeof(gpu::TrainTarget),
                            .losses = context_.buffers.losses.address() + at.first * sizeof(gpu::TrainLoss),
                            .vocab = vocab,
                            .stride = at.logits.stride},
                           with_gradients, at.n_rows);
    kernels_.barrier(recorder);
}

// The logits' gradients lie where the logits were.
void TrainPass::head_chunk_backward(gpu::Recorder& recorder, const HeadAt& at) const {
    const uint32_t vocab = config_.vocab_size, hidden = config_.hidden_size;
    kernels_.product(recorder, {.a = at.logits,
                                .b = at.w,
                                .c = at.dx,
                                .b_is_n_major = true,
                                .m = at.n_rows,
                                .n = hidden,
                                .k = vocab,
                                .is_padded = !at.whole,
                                .has_few_rows = at.rows.has_few,
                                .name = "head back"});
    if (at.whole) {
        kernels_.product(recorder, {.a = at.logits,
                                    .b = at.x,
                                    .c = context_.parameters.gradient_matrix(*at.whole),
                                    .a_is_m_major = true,
                                    .b_is_n_major = true,
                                    .m = vocab,
                                    .n = hidden,
                                    .k = at.n_rows,
                                    .adds = true});
    }
    if (!at.pairs.empty()) head_pairs_backward(recorder, at);
    kernels_.barrier(recorder);
}

void TrainPass::head_pairs_backward(gpu::Recorder& recorder, const HeadAt& at) const {
    const uint32_t vocab = config_.vocab_size, hidden = config_.hidden_size;
    for (const HeadPairAt& own : at.pairs) {
        const TrainedPairPlaces& pair = own.pair;
        kernels_.product(recorder, {.a = own.logits,
                                    .b = own.parameters.matrix(pair.b),
                                    .c = own.dlow,
                                    .b_is_n_major = true,
                                    .m = own.n_rows,
                                    .n = pair.rank,
                                    .k = vocab,
                                    .alpha = pair.scale});
        kernels_.product(recorder, {.a = own.logits,
                                    .b = own.low,
                                    .c = own.parameters.gradient_matrix(pair.b),
                                    .a_is_m_major = true,
                                    .b_is_n_major = true,
                                    .m = vocab,
                                    .n = pair.rank,
                                    .k = own.n_rows,
                                    .alpha = pair.scale,
                                    .adds = true});
    }
    kernels_.barrier(recorder);
    for (const HeadPairAt& own : at.pairs) {
        const TrainedPairPlaces& pair = own.pair;
        kernels_.product(recorder, {.a = own.dlow,
                                    .b = own.input(),
                                    .c = own.parameters.gradient_matrix(pair.a),
                                    .a_is_m_major = true,
                                    .b_is_n_major = true,
                                    .m = pair.rank,
                                    .n = hidden,
                                    .k = own.n_rows,
                                    .adds = true});
    }
    if (std::ranges::any_of(at.pairs, &HeadPairAt::drops)) kernels_.barrier(recorder);
    for (const HeadPairAt& own : at.pairs)
        kernels_.product(recorder, {.a = own.dlow,
                                    .b = own.parameters.matrix(own.pair.a),
                                    .c = own.drops ? own.left : own.dx,
                                    .b_is_n_major = true,
                                    .m = own.n_rows,
                                    .n = hidden,
                                    .k = own.pair.rank,
                                    .adds = !own.drops});
    add_dropped_gradients(recorder, at);
}

void TrainPass::drop_inputs(gpu::Recorder& recorder, const HeadAt& at) const {
    if (std::ranges::none_of(at.pairs, &HeadPairAt::drops)) return;
    for (const HeadPairAt& own : at.pairs) {
        if (!own.drops) continue;
        gpu::TrainDropoutParams params = own.dropout;
        params.x = own.x.address;
        params.to = own.left.address;
        kernels_.dropout(recorder, params, gpu::TrainDropoutForm::kLeft, own.n_rows);
    }
    kernels_.barrier(recorder);
}

void TrainPass::add_dropped_gradients(gpu::Recorder& recorder, const HeadAt& at) const {
    if (std::ranges::none_of(at.pairs, &HeadPairAt::drops)) return;
    kernels_.barrier(recorder);
    for (const HeadPairAt& own : at.pairs) {
        if (!own.drops) continue;
        gpu::TrainDropoutParams params = own.dropout;
        params.x = own.left.address;
        params.to = own.dx.address;
        kernels_.dropout(recorder, params, gpu::TrainDropoutForm::kAdds, own.n_rows);
    }
}

}  // namespace lorad::model
