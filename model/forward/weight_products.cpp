#include "model/forward/weight_products.h"

#include <algorithm>

namespace lorad::model {

void record_unpack(gpu::ProductKernels& products, gpu::Recorder& recorder, const Matrix& w, uint32_t row_begin,
                   uint32_t n_rows, gpu::DeviceAddress to) {
    CHECK(w.is_packed() && row_begin + n_rows <= w.n_padded);
    for (const MatrixPart& part : w.parts) {
        const uint32_t part_end = part.row_begin + part.n, begin = std::max(part.row_begin, row_begin);
        // The last part brings the padding with it.
        const uint32_t end = std::min(part_end, row_begin + n_rows),
                       filled_end = part_end == w.n ? row_begin + n_rows : end;
        if (begin >= end) continue;
        products.unpack_weights(recorder,
                                {.from = w.address_of(part),
                                 .to = to + uint64_t{begin - row_begin} * w.row_bytes(),
                                 .first_row = begin - part.row_begin,
                                 .n = end - begin,
                                 .n_rows = filled_end - begin,
                                 .stride = w.k_stride},
                                {part.format, w.type});
    }
}

gpu::MatmulParams matmul_params(const Matrix& w, gpu::DeviceAddress w_address, gpu::DeviceAddress x,
                                const gpu::Buffer& y, const gpu::MatmulPlan& plan, gpu::DeviceAddress n_rows) {
    return {.n_rows = n_rows,
            .w = w_address,
            .x = x,
            .y = y.address(),
            .y_fragments = 0,
            .n = w.n,
            .k = w.k,
            .w_stride = w.k_stride,
            .x_stride = w.k_stride,
            .y_stride = w.n_padded,
            .split_stride = split_stride(w, plan),
            .k_per_split = plan.k_per_split,
            .pad = 0};
}

gpu::DeviceAddress WeightProducts::plain(const Matrix& w, const gpu::MatmulPlan& plan) const {
    if (gpu::is_packed(plan.packed)) return 0;
    if (!plan.unpacks) return context_.address_of(w, weight_set_);
    CHECK(w.plain_bytes() <= context_.scratch.unpacked.size());
    record_unpack(kernels_.products, recorder_, w, 0, w.n_padded, context_.scratch.unpacked.address());
    recorder_.barrier();
    return context_.scratch.unpacked.address();
}

void WeightProducts::multiply(const Matrix& w, const gpu::MatmulPlan& plan,
                              const gpu::ProductArguments& arguments) const {
    if (!gpu::is_packed(plan.packed)) {
        kernels_.products.record(recorder_, plan, arguments);
        return;
    }
    for (const MatrixPart& part : w.parts) {
        gpu::ProductArguments of_part = arguments;
        gpu::MatmulPlan part_plan = plan;
        of_part.product.w = w.address_of(part);
        of_part.product.n = part.n;
        of_part.product.y += part.row_begin * sizeof(float);
        part_plan.packed = part.format;
        kernels_.products.record(recorder_, part_plan, of_part);
    }
}

}  // namespace lorad::model
