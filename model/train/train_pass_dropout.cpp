// Dropout of the inputs of linears, and the products of those with magnitudes in a step that drops. With x' what is
// left of x of one linear (each has a mask of its own), g = magnitude / norm and z = W x' + scale B A x', its output is
//
//   g z + W (x - x') + bias
//
// which is PEFT's W x + bias + (g - 1) W x' + g scale B A x': magnitudes scale what is left, and nothing is lost of the
// base. Sums hold z. With dz = g dy the input's gradient is W^T dy + mask (W^T (dz - dy) + A^T B^T scale dz).
#include "model/train/train_pass.h"

namespace lorad::model {
namespace {

using gpu::DeviceAddress;
using gpu::TrainDropoutForm;
using gpu::TrainMatrix;

}  // namespace

gpu::TrainDropoutParams TrainPass::dropout_params(const TrainDropout& dropout, DeviceAddress row_keys, uint32_t columns,
                                                  uint32_t module) {
    return {.x = 0,
            .to = 0,
            .row_keys = row_keys,
            .columns = columns,
            .x_stride = 0,
            .to_stride = 0,
            .module = module,
            .seed = static_cast<uint32_t>(dropout.seed ^ dropout.seed >> 32),
            .step = dropout.step,
            .threshold = static_cast<uint32_t>(static_cast<double>(dropout.p) * 4294967296.0),
            .factor = 1.0f / (1.0f - dropout.p)};
}

void TrainPass::drop(gpu::Recorder& recorder, const GroupAt& at, const JobAt& job, uint32_t linear,
                     const TrainMatrix& x, const TrainMatrix& to, TrainDropoutForm form) const {
    const uint64_t first_key = job.job.part.first_row * sizeof(MicroBatch::RowKey);
    gpu::TrainDropoutParams params =
        dropout_params(job.job.dropout, at.rows.tables_at + at.rows.tables.row_keys + first_key, at.group.w->k, linear);
    params.x = x.address;
    params.to = to.address;
    params.x_stride = x.stride;
    params.to_stride = to.stride;
    kernels_.dropout(recorder, params, form, job.n_rows(), x.type);
    kernels_.barrier(recorder);
}

TrainMatrix TrainPass::rows_from(const TrainMatrix& matrix, uint32_t row) {
    return {matrix.address + uint64_t{row} * matrix.stride * gpu::bytes_of(matrix.type), matrix.stride, matrix.type};
}

// The low rows of the pairs, and their sums but for what the pairs add. A part of a matrix has others behind it and not
// padding.
void TrainPass::product_of_left(gpu::Recorder& recorder, const GroupAt& at, const JobAt& job,
                                const gpu::TrainProduct& base) const {
    const TrainMatrix left{job.job.slot->dropped.address(), at.x.stride, at.x.type};
    for (const TrainPart& part : job.group.parts) {
        gpu::TrainProduct of_part = base;
        of_part.b = rows_from(base.b, part.begin);
        of_part.c = columns_from(base.c, part.begin);
        of_part.n = part.n;
        of_part.is_padded = job.group.parts.size() == 1;
        if (part.linear) {
            drop(recorder, at, job, *part.linear, at.x, left, TrainDropoutForm::kLeft);
            if (part.has_magnitude) of_part.a = left;
            kernels_.product(recorder, {.a = left,
                                        .b = job.pair_a(*part.linear, sizes_.act_type),
                                        .c = job.low(at.set, *part.linear),
                                        .m = job.n_rows(),
                                        .n = job.n_pair_rows(*part.linear),
                                        .k = base.k,
                                        .name = "x A"});
        }
        kernels_.product(recorder, of_part);
        kernels_.barrier(recorder);  // the next pair's input takes the place
    }
}

void TrainPass::add_rest(gpu::Recorder& recorder, const GroupAt& at, const TrainMatrix& to) const {
    const JobAt job = jobs_at(at).front();
    const TrainMatrix rest{job.job.slot->dropped.address(), at.x.stride, at.x.type},
        w = plain(recorder, *at.group.w);  // whole behind the first drop()
    for (const TrainPart& part : job.group.parts) {
        if (!part.has_magnitude) continue;
        drop(recorder, at, job, *part.linear, at.x, rest, TrainDropoutForm::kRest);
        kernels_.product(recorder, {.a = rest,
                                    .b = rows_from(w, part.begin),
                                    .c = columns_from(to, part.begin),
                                    .m = job.n_rows(),
                                    .n = part.n,
                                    .k = at.group.w->k,
                                    .adds = true,
                                    .name = "x W rest"});
        kernels_.barrier(recorder);
    }
}

// The sums give their place to their gradients: nothing reads them any more.
void TrainPass::left_backward(gpu::Recorder& recorder, const GroupAt& at, const TrainMatrix& dout,
                              const TrainMatrix& dsums, const TrainMatrix& dx) const {
    const Matrix& w = *at.group.w;
    const JobAt job = jobs_at(at).front();
    const LeftOfBase left{dx.address != 0 ? plain(recorder, w) : TrainMatrix{}, dsums};
    if (dx.address != 0) {
        if (w.is_packed()) kernels_.barrier(recorder);
        kernels_.product(recorder, {.a = dout,
                                    .b = left.w,
                                    .c = dx,
                                    .b_is_n_major = true,
                                    .m = at.n_rows(),
                                    .n = w.k,
                                    .k = w.n,
                                    .is_padded = true,
                                    .name = "dy W"});
    }
    scale(recorder, at, {.from = dout, .to = at.sums});
    b_backward(recorder, at, job, at.sums);
    kernels_.barrier(recorder);
    if (dx.address != 0) scale(recorder, at, {.from = dout, .to = dsums, .less = 1.0f});  // dz - dy
    a_backward(recorder, at, job, dx, left);
    kernels_.barrier(recorder);
}

// What the base's product gives an input that was dropped from.
void TrainPass::base_backward(gpu::Recorder& recorder, const GroupAt& at, const TrainPart& part, const LeftOfBase& left,
                              const TrainMatrix& dinput) const {
    kernels_.product(recorder, {.a = columns_from(left.dsums, part.begin),
                                .b = rows_from(left.w, part.begin),
                                .c = dinput,
                                .b_is_n_major = true,
                                .m = at.n_rows(),
                                .n = at.group.w->k,
                                .k = part.n,
                                .is_padded = at.group.parts.size() == 1,
                                .name = "dy W left"});
    kernels_.barrier(recorder);
}

}  // namespace lorad::model
