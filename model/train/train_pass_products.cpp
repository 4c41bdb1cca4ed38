// The products of a training step: a group of linears that read the same rows, with what its adapters add, both ways.
#include "model/train/train_pass.h"

namespace lorad::model {
namespace {

using gpu::DeviceAddress;
using gpu::TrainMatrix;

TrainMatrix columns_from(const TrainMatrix& matrix, uint32_t column) {
    return {matrix.address + column * uint64_t{gpu::bytes_of(matrix.type)}, matrix.stride, matrix.type};
}

}  // namespace

TrainMatrix TrainPass::low(DeviceAddress base, uint32_t linear) const {
    return {base + sizes_.low_begins[linear], sizes_.low_strides[linear]};
}

TrainPass::GroupAt TrainPass::group(const TrainRows& rows, uint32_t layer, TrainGroupIndex index, const TrainMatrix& x,
                                    const TrainMatrix& sums, DeviceAddress low) const {
    const TrainGroup& group = context_.model.layers[layer].groups[index];
    return {group, x,    sums,
            low,   rows, sizes_.shadows && group.is_trained() ? &sizes_.shadows->at(layer, index) : nullptr};
}

TrainMatrix TrainPass::low_of_group(DeviceAddress base, const GroupAt& at) const {
    for (const TrainPart& part : at.group.parts) {
        if (part.linear) return low(base, *part.linear);  // the first one's are in front
    }
    CHECK(false);
}

TrainMatrix TrainPass::shadow_a(const GroupAt& at) const {
    return {context_.buffers.shadows.address() + at.shadow->a, at.group.w->k_stride, sizes_.act_type};
}

TrainMatrix TrainPass::shadow_b(const GroupAt& at) const {
    return {context_.buffers.shadows.address() + at.shadow->b, gpu::padded(at.shadow->n_ranks), sizes_.act_type};
}

void TrainPass::product(gpu::Recorder& recorder, const GroupAt& at) const {
    const Matrix& w = *at.group.w;
    gpu::TrainProduct base{.a = at.x,
                           .b = matrix_of(w),
                           .c = at.sums,
                           .m = at.n_rows(),
                           .n = w.n,
                           .k = w.k,
                           .is_padded = true,
                           .name = "x W"};
    if (at.shadow != nullptr) {
        lows(recorder, at);
        base.more_a = low_of_group(at.low, at);
        base.more_b = shadow_b(at);
        base.more_k = at.shadow->n_ranks;
    }
    kernels_.product(recorder, base);
    if (at.shadow != nullptr) {
        kernels_.barrier(recorder);
        return;
    }
    lows(recorder, at);
    if (!at.group.is_trained()) return;
    for (const TrainPart& part : at.group.parts) {
        if (!part.linear) continue;
        const TrainedPairPlaces& pair = context_.parameters.layout().linears[*part.linear];
        kernels_.product(recorder, {.a = low(at.low, *part.linear),
                                    .b = context_.parameters.matrix(pair.b),
                                    .c = columns_from(at.sums, part.begin),
                                    .m = at.n_rows(),
                                    .n = part.n,
                                    .k = pair.rank,
                                    .alpha = pair.scale,
                                    .adds = true,
                                    .name = "low B"});
    }
    kernels_.barrier(recorder);
}

void TrainPass::lows(gpu::Recorder& recorder, const GroupAt& at) const {
    const Matrix& w = *at.group.w;
    if (at.shadow != nullptr) {
        kernels_.product(recorder, {.a = at.x,
                                    .b = shadow_a(at),
                                    .c = low_of_group(at.low, at),
                                    .m = at.n_rows(),
                                    .n = at.shadow->n_ranks,
                                    .k = w.k,
                                    .name = "x A"});
        kernels_.barrier(recorder);
        return;
    }
    const bool drops = at.rows.dropout.p > 0;
    const TrainMatrix dropped{context_.buffers.dropped.address(), at.x.stride};
    for (const TrainPart& part : at.group.parts) {
        if (!part.linear) continue;
        const TrainedPairPlaces& pair = context_.parameters.layout().linears[*part.linear];
        if (drops) drop(recorder, at, *part.linear, at.x, dropped, false);
        kernels_.product(recorder, {.a = drops ? dropped : at.x,
                                    .b = context_.parameters.matrix(pair.a),
                                    .c = low(at.low, *part.linear),
                                    .m = at.n_rows(),
                                    .n = pair.rank,
                                    .k = w.k,
                                    .name = "x A"});
        if (drops) kernels_.barrier(recorder);  // the next pair's input takes the place
    }
    kernels_.barrier(recorder);
}

void TrainPass::drop(gpu::Recorder& recorder, const GroupAt& at, uint32_t linear, const TrainMatrix& x,
                     const TrainMatrix& to, bool adds) const {
    const TrainDropout& dropout = at.rows.dropout;
    kernels_.dropout(recorder,
                     {.x = x.address,
                      .to = to.address,
                      .row_keys = at.rows.tables_at + at.rows.tables.row_keys,
                      .columns = at.group.w->k,
                      .x_stride = x.stride,
                      .to_stride = to.stride,
                      .module = linear,
                      .seed = static_cast<uint32_t>(dropout.seed ^ dropout.seed >> 32),
                      .step = dropout.step,
                      .threshold = static_cast<uint32_t>(static_cast<double>(dropout.p) * 4294967296.0),
                      .factor = 1.0f / (1.0f - dropout.p)},
                     adds, at.n_rows());
    kernels_.barrier(recorder);
}

void TrainPass::finish(gpu::Recorder& recorder, const GroupAt& at, const TrainMatrix& to,
                       const TrainMatrix& base) const {
    const DeviceAddress bias = at.group.bias->address();
    if (bias == 0 && base.address == 0 && to.address == at.sums.address) return;
    scale(recorder, at, at.sums, to, base, bias);
}

void TrainPass::scale(gpu::Recorder& recorder, const GroupAt& at, const TrainMatrix& from, const TrainMatrix& to,
                      const TrainMatrix& base, DeviceAddress bias) const {
    const auto affine = [&](uint32_t begin, uint32_t n, DeviceAddress gain, DeviceAddress factor) {
        kernels_.affine(recorder, {.to = to.address + begin * sizeof(float),
                                   .base = base.address != 0 ? base.address + begin * sizeof(float) : 0,
                                   .z = from.address + begin * sizeof(float),
                                   .gain = gain,
                                   .factor = factor,
                                   .bias = bias != 0 ? bias + begin * sizeof(float) : 0,
                                   .n = n,
                                   .to_stride = to.stride,
                                   .base_stride = base.stride,
                                   .z_stride = from.stride,
                                   .rows = at.n_rows(),
                                   .pad = 0});
    };
    if (!at.group.has_magnitudes()) {
        affine(0, at.group.w->n, 0, 0);
    } else {
        for (const TrainPart& part : at.group.parts) {
            const bool has = part.has_magnitude;
            affine(
                part.begin, part.n,
                has ? context_.parameters.value(context_.parameters.layout().linears[*part.linear].magnitude) : 0,
                has ? context_.buffers.inverse_norms.address() + sizes_.norm_begins[*part.linear] * sizeof(float) : 0);
        }
    }
    kernels_.barrier(recorder);
}

TrainMatrix TrainPass::finish_backward(gpu::Recorder& recorder, const GroupAt& at, const TrainMatrix& dout,
                                       const TrainMatrix& dsums) const {
    if (!at.group.has_magnitudes()) return dout;
    for (const TrainPart& part : at.group.parts) {
        if (!part.has_magnitude) continue;
        kernels_.column_sums(
            recorder,
            {.to = context_.parameters.gradient(context_.parameters.layout().linears[*part.linear].magnitude),
             .a = dout.address + part.begin * sizeof(float),
             .b = at.sums.address + part.begin * sizeof(float),
             .factor = context_.buffers.inverse_norms.address() + sizes_.norm_begins[*part.linear] * sizeof(float),
             .n_columns = part.n,
             .n_parts = 1,
             .rows = at.n_rows(),
             .a_stride = dout.stride,
             .b_stride = at.sums.stride,
             .pad = 0});
    }
    kernels_.barrier(recorder);
    scale(recorder, at, dout, dsums, {}, 0);
    return dsums;
}

void TrainPass::product_backward(gpu::Recorder& recorder, const GroupAt& at, const TrainMatrix& dsums,
                                 const TrainMatrix& dx) const {
    const Matrix& w = *at.group.w;
    const TrainParameters& parameters = context_.parameters;
    const DeviceAddress dlow_at = context_.buffers.dlow.address();
    gpu::TrainProduct base{.a = dsums,
                           .b = matrix_of(w),
                           .c = dx,
                           .b_has_rows_of_k = true,
                           .m = at.n_rows(),
                           .n = w.k,
                           .k = w.n,
                           .is_padded = true,
                           .name = "dy W"};
    if (at.shadow != nullptr) {
        base.more_a = low_of_group(dlow_at, at);
        base.more_b = shadow_a(at);
        base.more_k = at.shadow->n_ranks;
        kernels_.product(recorder, {.a = dsums,
                                    .b = shadow_b(at),
                                    .c = base.more_a,
                                    .b_has_rows_of_k = true,
                                    .m = at.n_rows(),
                                    .n = base.more_k,
                                    .k = w.n,
                                    .name = "dy B"});
    } else if (dx.address != 0) {
        kernels_.product(recorder, base);
    }
    for (const TrainPart& part : at.group.parts) {
        if (!part.linear) continue;
        const TrainedPairPlaces& pair = parameters.layout().linears[*part.linear];
        const TrainMatrix dpart = columns_from(dsums, part.begin);
        if (at.shadow == nullptr)
            kernels_.product(recorder, {.a = dpart,
                                        .b = parameters.matrix(pair.b),
                                        .c = low(dlow_at, *part.linear),
                                        .b_has_rows_of_k = true,
                                        .m = at.n_rows(),
                                        .n = pair.rank,
                                        .k = part.n,
                                        .alpha = pair.scale,
                                        .name = "dy B"});
        kernels_.product(recorder, {.a = dpart,
                                    .b = low(at.low, *part.linear),
                                    .c = parameters.gradient_matrix(pair.b),
                                    .a_has_rows_of_k = true,
                                    .b_has_rows_of_k = true,
                                    .m = part.n,
                                    .n = pair.rank,
                                    .k = at.n_rows(),
                                    .alpha = pair.scale,
                                    .adds = true,
                                    .name = "dy low"});
    }
    kernels_.barrier(recorder);
    pair_inputs_backward(recorder, at, dx);
    if (at.shadow != nullptr && dx.address != 0) kernels_.product(recorder, base);
    kernels_.barrier(recorder);
}

void TrainPass::pair_inputs_backward(gpu::Recorder& recorder, const GroupAt& at, const TrainMatrix& dx) const {
    const TrainParameters& parameters = context_.parameters;
    const uint32_t n_inputs = at.group.w->k;
    const bool drops = at.rows.dropout.p > 0;
    for (const TrainPart& part : at.group.parts) {
        if (!part.linear) continue;
        const TrainedPairPlaces& pair = parameters.layout().linears[*part.linear];
        const TrainMatrix dlow = low(context_.buffers.dlow.address(), *part.linear),
                          dropped{context_.buffers.dropped.address(), at.x.stride};
        if (drops) drop(recorder, at, *part.linear, at.x, dropped, false);
        kernels_.product(recorder, {.a = dlow,
                                    .b = drops ? dropped : at.x,
                                    .c = parameters.gradient_matrix(pair.a),
                                    .a_has_rows_of_k = true,
                                    .b_has_rows_of_k = true,
                                    .m = pair.rank,
                                    .n = n_inputs,
                                    .k = at.n_rows(),
                                    .adds = true,
                                    .name = "dlow x"});
        if (drops) kernels_.barrier(recorder);  // what was left of the input gives way
        if (dx.address == 0 || at.shadow != nullptr) continue;
        if (drops) {
            kernels_.product(recorder, {.a = dlow,
                                        .b = parameters.matrix(pair.a),
                                        .c = dropped,
                                        .b_has_rows_of_k = true,
                                        .m = at.n_rows(),
                                        .n = n_inputs,
                                        .k = pair.rank,
                                        .name = "dlow A"});
            kernels_.barrier(recorder);
            drop(recorder, at, *part.linear, dropped, dx, true);
            continue;
        }
        kernels_.product(recorder, {.a = dlow,
                                    .b = parameters.matrix(pair.a),
                                    .c = dx,
                                    .b_has_rows_of_k = true,
                                    .m = at.n_rows(),
                                    .n = n_inputs,
                                    .k = pair.rank,
                                    .adds = true,
                                    .name = "dlow A"});
        kernels_.barrier(recorder);  // the next pair adds to the same
    }
}

}  // namespace lorad::model
