// compressed-tensors: integers of 4 or 8 bits along rows, in 32-bit words or one a byte. Layouts as its compressors/
// write them.
#pragma once

#include "model/quant/linear_tensors.h"
#include "model/quant/quantization_config.h"

namespace lorad::model {

// The matrix of `linear`'s tensors by the first of `schemes` that they fit: weight_packed and weight_shape, or weight
// (I8); weight_scale; with zero points weight_zero_point; weight_g_idx where groups have no order; FP8 as fp8.h has it.
// (code - zero point) x scale, in f32.
// kInvalidModel names the tensor, what was expected and what was found.
Result<Tensor> make_compressed_matrix(const LinearTensors& linear, std::span<const WeightScheme> schemes);

}  // namespace lorad::model
