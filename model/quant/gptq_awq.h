// GPTQ and AWQ: integers of 4 or 8 bits in 32-bit words along columns, with scales and zero points of groups of inputs.
// Layouts as GPTQModel (utils/model.py) and AutoAWQ (awq/utils/packing_utils.py) write them.
#pragma once

#include "model/quant/linear_tensors.h"
#include "model/quant/quantization_config.h"

namespace lorad::model {

// The matrix of `linear`'s tensors qweight, qzeros, scales and g_idx (GPTQ only, and not of all writers): (code - zero
// point) x scale, in f32.
// Zero points of GPTQ are stored as they are or one less. Symmetric models, whose zero points are all 2^(bits - 1),
// tell it by their values, since some writers say the wrong checkpoint_format; others by the config.
// kInvalidModel names the tensor, what was expected and what was found.
Result<Tensor> make_gptq_matrix(LinearTensors& linear, const QuantizationConfig& config);
Result<Tensor> make_awq_matrix(LinearTensors& linear, const QuantizationConfig& config);

}  // namespace lorad::model
