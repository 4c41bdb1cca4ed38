// Records products with the model's matrices, plain or packed. Internal to forward.cpp and forward_outputs.cpp; what
// unpacks is for training too.
#pragma once

#include "gpu/command.h"
#include "gpu/kernels/kernels.h"
#include "model/forward/forward.h"

namespace lorad::model {

// Rows [row_begin, row_begin + n_rows) of a packed matrix as a plain one at `to`, rounded to its type; rows behind the
// last become zero. A dispatch for each part, no barrier.
void record_unpack(gpu::ProductKernels& products, gpu::Recorder& recorder, const Matrix& w, uint32_t row_begin,
                   uint32_t n_rows, gpu::DeviceAddress to);

// y = x w^T for the rows whose number stands at n_rows, with the weights at w_address.
gpu::MatmulParams matmul_params(const Matrix& w, gpu::DeviceAddress w_address, gpu::DeviceAddress x,
                                const gpu::Buffer& y, const gpu::MatmulPlan& plan, gpu::DeviceAddress n_rows);

class WeightProducts {
  public:
    WeightProducts(gpu::Recorder& recorder, const ForwardContext& context, uint8_t weight_set)
        : recorder_(recorder), kernels_(context.kernels), context_(context), weight_set_(weight_set) {}

    // Returns where a product by this plan finds the plain matrix. With MatmulPlan::unpacks it is unpacked there first,
    // with a barrier behind, and stays until the next such call. Parts that are read as they are have no address here:
    // multiply() has theirs.
    gpu::DeviceAddress plain(const Matrix& w, const gpu::MatmulPlan& plan) const;
    // The product. arguments.product.w is plain()'s.
    void multiply(const Matrix& w, const gpu::MatmulPlan& plan, const gpu::ProductArguments& arguments) const;

  private:
    gpu::Recorder& recorder_;
    gpu::KernelSet& kernels_;
    const ForwardContext& context_;
    const uint8_t weight_set_;
};

}  // namespace lorad::model
