// The products of a training step: a group of linears that read the same rows, with what its adapters add, both ways.
#include "model/forward/weight_products.h"
#include "model/train/train_pass.h"

namespace lorad::model {
namespace {

using gpu::DeviceAddress;
using gpu::TrainDropoutForm;
using gpu::TrainMatrix;

}  // namespace

TrainMatrix TrainPass::columns_from(const TrainMatrix& matrix, uint32_t column) {
    return {matrix.address + column * uint64_t{gpu::bytes_of(matrix.type)}, matrix.stride, matrix.type};
}

TrainMatrix TrainPass::JobAt::of(const TrainMatrix& matrix) const {
    return {matrix.address + uint64_t{job.part.first_row} * matrix.stride * gpu::bytes_of(matrix.type), matrix.stride,
            matrix.type};
}

TrainMatrix TrainPass::JobAt::low(uint32_t set, uint32_t linear) const {
    const SlotSizes& sizes = job.slot->sizes;
    return {job.slot->low_of_set(set) + sizes.low_begins[linear], sizes.low_strides[linear]};
}

TrainMatrix TrainPass::JobAt::dlow(uint32_t linear) const {
    const SlotSizes& sizes = job.slot->sizes;
    return {job.slot->dlow.address() + sizes.low_begins[linear], sizes.low_strides[linear]};
}

// Its low rows are in front of those of the others.
uint32_t TrainPass::JobAt::first_linear() const {
    for (const TrainPart& part : group.parts) {
        if (part.linear) return *part.linear;
    }
    CHECK(false);
}

TrainMatrix TrainPass::JobAt::shadow_a(gpu::ScalarType type) const {
    return {job.slot->shadows.address() + shadow->a, group.w->k_stride, type};
}

TrainMatrix TrainPass::JobAt::shadow_b(gpu::ScalarType type) const {
    return {job.slot->shadows.address() + shadow->b, gpu::padded(shadow->n_ranks), type};
}

TrainMatrix TrainPass::JobAt::pair_a(uint32_t linear, gpu::ScalarType shadow_type) const {
    const TrainedPairPlaces& pair = parameters().layout().linears[linear];
    if (shadow == nullptr) return parameters().matrix(pair.a);
    const TrainMatrix all = shadow_a(shadow_type);
    const uint64_t row = job.slot->sizes.shadows->rank_begins[linear];
    return {all.address + row * all.stride * gpu::bytes_of(all.type), all.stride, all.type};
}

// Shadows have rows of zeros up to the next pair's.
uint32_t TrainPass::JobAt::n_pair_rows(uint32_t linear) const {
    const uint32_t rank = parameters().layout().linears[linear].rank;
    return shadow == nullptr ? rank : round_up(rank, kShadowRankAlign);
}

TrainPass::GroupAt TrainPass::group(const TrainRows& rows, const LayerAt& here, uint32_t layer, TrainGroupIndex index,
                                    const TrainMatrix& x, const TrainMatrix& sums) const {
    return {context_.model.layers[layer].groups[index], x, sums, rows, layer, index, here.set};
}

std::vector<TrainPass::JobAt> TrainPass::jobs_at(const GroupAt& at) const {
    std::vector<JobAt> jobs;
    for (const TrainJobRows& job : at.rows.jobs) {
        const TrainGroup& group = job.slot->model.layers[at.layer].groups[at.index];
        if (group.is_trained()) jobs.push_back({job, group, job.slot->shadow(at.layer, at.index)});
    }
    return jobs;
}

TrainMatrix TrainPass::plain(gpu::Recorder& recorder, const Matrix& w) const {
    if (!w.is_packed()) return {w.buffer.address(), w.k_stride, w.type};
    CHECK(w.plain_bytes() <= context_.buffers.unpacked.size());
    record_unpack(kernels_.products(), recorder, w, 0, w.n_padded, context_.buffers.unpacked.address());
    return {context_.buffers.unpacked.address(), w.k_stride, w.type};
}

void TrainPass::product(gpu::Recorder& recorder, const GroupAt& at) const {
    const Matrix& w = *at.group.w;
    gpu::TrainProduct base{.a = at.x,
                           .b = plain(recorder, w),
                           .c = at.sums,
                           .m = at.n_rows(),
                           .n = w.n,
                           .k = w.k,
                           .is_padded = true,
                           .has_few_rows = at.rows.has_few,
                           .name = "x W"};
    const std::vector<JobAt> jobs = jobs_at(at);
    if (at.drops_base()) {
        if (w.is_packed()) kernels_.barrier(recorder);
        product_of_left(recorder, at, jobs.front(), base);
        add_lows(recorder, at);
        kernels_.barrier(recorder);
        return;
    }
    if (at.stacks_shadows() && !jobs.empty() && jobs.front().shadow != nullptr) {
        const JobAt& job = jobs.front();
        lows(recorder, at);
        base.more_a = job.low(at.set, job.first_linear());
        base.more_b = job.shadow_b(sizes_.act_type);
        base.more_k = job.shadow->n_ranks;
        kernels_.product(recorder, base);
        kernels_.barrier(recorder);
        return;
    }
    if (w.is_packed()) kernels_.barrier(recorder);
    kernels_.product(recorder, base);
    lows(recorder, at);
    if (jobs.empty()) return;
    add_lows(recorder, at);
    kernels_.barrier(recorder);
}

void TrainPass::add_lows(gpu::Recorder& recorder, const GroupAt& at) const {
    for (const JobAt& job : jobs_at(at)) {
        if (job.shadow != nullptr) {
            kernels_.product(recorder, {.a = job.low(at.set, job.first_linear()),
                                        .b = job.shadow_b(sizes_.act_type),
                                        .c = job.of(at.sums),
                                        .m = job.n_rows(),
                                        .n = at.group.w->n,
                                        .k = job.shadow->n_ranks,
                                        .adds = true,
                                        .name = "low B"});
            continue;
        }
        for (const TrainPart& part : job.group.parts) {
            if (!part.linear) continue;
            const TrainedPairPlaces& pair = job.parameters().layout().linears[*part.linear];
            kernels_.product(recorder, {.a = job.low(at.set, *part.linear),
                                        .b = job.parameters().matrix(pair.b),
                                        .c = columns_from(job.of(at.sums), part.begin),
                                        .m = job.n_rows(),
                                        .n = part.n,
                                        .k = pair.rank,
                                        .alpha = pair.scale,
                                        .adds = true,
                                        .name = "low B"});
        }
    }
}

void TrainPass::lows(gpu::Recorder& recorder, const GroupAt& at) const {
    for (const JobAt& job : jobs_at(at)) lows_of(recorder, at, job);
    kernels_.barrier(recorder);
}

void TrainPass::lows_of(gpu::Recorder& recorder, const GroupAt& at, const JobAt& job) const {
    const uint32_t k = at.group.w->k;
    const TrainMatrix x = job.of(at.x);
    if (job.shadow != nullptr && !job.drops()) {
        kernels_.product(recorder, {.a = x,
                                    .b = job.shadow_a(sizes_.act_type),
                                    .c = job.low(at.set, job.first_linear()),
                                    .m = job.n_rows(),
                                    .n = job.shadow->n_ranks,
                                    .k = k,
                                    .name = "x A"});
        return;
    }
    const bool drops = job.drops();
    const TrainMatrix dropped{job.job.slot->dropped.address(), x.stride, x.type};
    for (const TrainPart& part : job.group.parts) {
        if (!part.linear) continue;
        if (drops) drop(recorder, at, job, *part.linear, x, dropped, TrainDropoutForm::kLeft);
        kernels_.product(recorder, {.a = drops ? dropped : x,
                                    .b = job.pair_a(*part.linear, sizes_.act_type),
                                    .c = job.low(at.set, *part.linear),
                                    .m = job.n_rows(),
                                    .n = job.n_pair_rows(*part.linear),
                                    .k = k,
                                    .name = "x A"});
        if (drops) kernels_.barrier(recorder);  // the next pair's input takes the place
    }
}

void TrainPass::finish(gpu::Recorder& recorder, const GroupAt& at, const TrainMatrix& to,
                       const TrainMatrix& base) const {
    const DeviceAddress trained = at.rows.jobs.front().slot->bias(at.layer, at.index),
                        bias = trained != 0 ? trained : at.group.bias->address();
    const bool scales = at.group.has_magnitudes();
    if (!scales && bias == 0 && base.address == 0 && to.address == at.sums.address) return;
    scale(recorder, at, {.from = at.sums, .to = to, .base = base, .bias = bias});
    if (at.drops_base()) add_rest(recorder, at, to);
}

void TrainPass::scale(gpu::Recorder& recorder, const GroupAt& at, const Scaled& scaled) const {
    const TrainMatrix &from = scaled.from, &to = scaled.to, &base = scaled.base;
    const DeviceAddress bias = scaled.bias;
    CHECK(from.type == to.type);
    const auto affine = [&](uint32_t begin, uint32_t n, DeviceAddress gain, DeviceAddress factor) {
        kernels_.affine(recorder,
                        {.to = columns_from(to, begin).address,
                         .base = base.address != 0 ? base.address + begin * sizeof(float) : 0,
                         .z = columns_from(from, begin).address,
                         .gain = gain,
                         .factor = factor,
                         .bias = bias != 0 ? bias + begin * sizeof(float) : 0,
                         .n = n,
                         .to_stride = to.stride,
                         .base_stride = base.stride,
                         .z_stride = from.stride,
                         .rows = at.n_rows(),
                         .less = scaled.less},
                        from.type);
    };
    if (!at.group.has_magnitudes()) {
        affine(0, at.group.w->n, 0, 0);
    } else {
        const TrainSlot& slot = *at.rows.jobs.front().slot;
        for (const TrainPart& part : at.group.parts) {
            const bool has = part.has_magnitude;
            affine(part.begin, part.n,
                   has ? context_.parameters.value(context_.parameters.layout().linears[*part.linear].magnitude) : 0,
                   has ? slot.inverse_norms.address() + slot.sizes.norm_begins[*part.linear] * sizeof(float) : 0);
        }
    }
    kernels_.barrier(recorder);
}

void TrainPass::group_backward(gpu::Recorder& recorder, const GroupAt& at, const TrainMatrix& dout,
                               const TrainMatrix& dsums, const TrainMatrix& dx) const {
    if (at.group.trains_bias()) biases_backward(recorder, at, dout);
    if (at.group.has_magnitudes()) magnitudes_backward(recorder, at, dout);
    if (at.drops_base()) {
        left_backward(recorder, at, dout, dsums, dx);
        return;
    }
    if (at.group.has_magnitudes()) scale(recorder, at, {.from = dout, .to = dsums});
    product_backward(recorder, at, at.group.has_magnitudes() ? dsums : dout, dx);
}

void TrainPass::magnitudes_backward(gpu::Recorder& recorder, const GroupAt& at, const TrainMatrix& dout) const {
    CHECK(dout.type == at.sums.type);
    const TrainSlot& slot = *at.rows.jobs.front().slot;
    for (const TrainPart& part : at.group.parts) {
        if (!part.has_magnitude) continue;
        kernels_.column_sums(
            recorder,
            {.to = context_.parameters.gradient(context_.parameters.layout().linears[*part.linear].magnitude),
             .a = columns_from(dout, part.begin).address,
             .b = columns_from(at.sums, part.begin).address,
             .factor = slot.inverse_norms.address() + slot.sizes.norm_begins[*part.linear] * sizeof(float),
             .n_columns = part.n,
             .n_parts = 1,
             .rows = at.n_rows(),
             .a_stride = dout.stride,
             .b_stride = at.sums.stride,
             .scale = 1.0f},
            dout.type);
    }
    kernels_.barrier(recorder);
}

void TrainPass::product_backward(gpu::Recorder& recorder, const GroupAt& at, const TrainMatrix& dsums,
                                 const TrainMatrix& dx) const {
    const Matrix& w = *at.group.w;
    gpu::TrainProduct base{.a = dsums,
                           .b = dx.address != 0 ? plain(recorder, w) : TrainMatrix{},
                           .c = dx,
                           .b_is_n_major = true,
                           .m = at.n_rows(),
                           .n = w.k,
                           .k = w.n,
                           .is_padded = true,
                           .has_few_rows = at.rows.has_few,
                           .name = "dy W"};
    const std::vector<JobAt> jobs = jobs_at(at);
    const bool stacks = at.joins_shadows_backward() && !jobs.empty() && jobs.front().shadow != nullptr;
    if (dx.address != 0 && !stacks) {
        if (w.is_packed()) kernels_.barrier(recorder);
        kernels_.product(recorder, base);
    }
    for (const JobAt& job : jobs) b_backward(recorder, at, job, job.of(dsums));
    kernels_.barrier(recorder);
    for (const JobAt& job : jobs)
        a_backward(recorder, at, job, dx.address == 0 || stacks ? TrainMatrix{} : job.of(dx), {});
    if (stacks && dx.address != 0) {
        base.more_a = jobs.front().dlow(jobs.front().first_linear());
        base.more_b = jobs.front().shadow_a(sizes_.act_type);
        base.more_k = jobs.front().shadow->n_ranks;
        kernels_.product(recorder, base);
    }
    kernels_.barrier(recorder);
}

void TrainPass::b_backward(gpu::Recorder& recorder, const GroupAt& at, const JobAt& job,
                           const TrainMatrix& dsums) const {
    const TrainParameters& parameters = job.parameters();
    if (job.shadow != nullptr)
        kernels_.product(recorder, {.a = dsums,
                                    .b = job.shadow_b(sizes_.act_type),
                                    .c = job.dlow(job.first_linear()),
                                    .b_is_n_major = true,
                                    .m = job.n_rows(),
                                    .n = job.shadow->n_ranks,
                                    .k = at.group.w->n,
                                    .name = "dy B"});
    for (const TrainPart& part : job.group.parts) {
        if (!part.linear) continue;
        const TrainedPairPlaces& pair = parameters.layout().linears[*part.linear];
        const TrainMatrix dpart = columns_from(dsums, part.begin);
        if (job.shadow == nullptr)
            kernels_.product(recorder, {.a = dpart,
                                        .b = parameters.matrix(pair.b),
                                        .c = job.dlow(*part.linear),
                                        .b_is_n_major = true,
                                        .m = job.n_rows(),
                                        .n = pair.rank,
                                        .k = part.n,
                                        .alpha = pair.scale,
                                        .name = "dy B"});
        kernels_.product(recorder, {.a = dpart,
                                    .b = job.low(at.set, *part.linear),
                                    .c = parameters.gradient_matrix(pair.b),
                                    .a_is_m_major = true,
                                    .b_is_n_major = true,
                                    .m = part.n,
                                    .n = pair.rank,
                                    .k = job.n_rows(),
                                    .alpha = pair.scale,
                                    .adds = true,
                                    .name = "dy low"});
    }
}

void TrainPass::a_backward(gpu::Recorder& recorder, const GroupAt& at, const JobAt& job, const TrainMatrix& dx,
                           const LeftOfBase& left) const {
    const TrainParameters& parameters = job.parameters();
    const uint32_t k = at.group.w->k;
    const bool drops = job.drops();
    // What is left of the input, and then what the pair's part of its gradient is.
    const TrainMatrix x = job.of(at.x), dropped{job.job.slot->dropped.address(), x.stride, x.type},
                      dinput = drops ? TrainMatrix{dropped.address, x.stride} : dx;
    const auto add_to_input = [&](const TrainMatrix& dlow, const TrainMatrix& a, uint32_t n_ranks,
                                  const TrainMatrix& to, bool adds) {
        kernels_.product(recorder, {.a = dlow,
                                    .b = a,
                                    .c = to,
                                    .b_is_n_major = true,
                                    .m = job.n_rows(),
                                    .n = k,
                                    .k = n_ranks,
                                    .adds = adds,
                                    .name = "dlow A"});
    };
    if (job.shadow != nullptr && !drops && dx.address != 0)
        add_to_input(job.dlow(job.first_linear()), job.shadow_a(sizes_.act_type), job.shadow->n_ranks, dx, true);
    for (const TrainPart& part : job.group.parts) {
        if (!part.linear) continue;
        const TrainedPairPlaces& pair = parameters.layout().linears[*part.linear];
        const TrainMatrix dlow = job.dlow(*part.linear);
        if (drops) drop(recorder, at, job, *part.linear, x, dropped, TrainDropoutForm::kLeft);
        kernels_.product(recorder, {.a = dlow,
                                    .b = drops ? dropped : x,
                                    .c = parameters.gradient_matrix(pair.a),
                                    .a_is_m_major = true,
                                    .b_is_n_major = true,
                                    .m = pair.rank,
                                    .n = k,
                                    .k = job.n_rows(),
                                    .adds = true,
                                    .name = "dlow x"});
        if (drops) kernels_.barrier(recorder);  // what was left of the input gives way
        if (dx.address == 0 || (job.shadow != nullptr && !drops)) continue;
        const bool has_base = left.w.address != 0 && part.has_magnitude;
        if (has_base) base_backward(recorder, at, part, left, dinput);
        add_to_input(dlow, job.pair_a(*part.linear, sizes_.act_type), job.n_pair_rows(*part.linear), dinput,
                     !drops || has_base);
        kernels_.barrier(recorder);  // the next pair adds to the same
        if (drops) drop(recorder, at, job, *part.linear, dinput, dx, TrainDropoutForm::kAdds);
    }
}

}  // namespace lorad::model
