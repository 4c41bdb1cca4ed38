// bitsandbytes: 4-bit codebooks (NF4, FP4), with scales of 32 or of 8 bits, and LLM.int8. Layouts as bitsandbytes 0.50
// writes them (functional.py QuantState.as_dict, nn/modules.py Linear8bitLt).
#pragma once

#include "model/quant/linear_tensors.h"

namespace lorad::model {

// The matrix of `linear`'s tensors: weight, weight.absmax, weight.quant_map, weight.quant_state.bitsandbytes__nf4 or
// __fp4, and with double quantization weight.nested_absmax and weight.nested_quant_map; or weight (I8) and SCB.
// kInvalidModel names the tensor, what was expected and found.
//
// A number is quant_map[code] x absmax in f32. bitsandbytes then rounds it to the type that the model was loaded in
// when it was quantized, which training saw: so does whoever puts the numbers into matrices of that type, and those who
// ask for f32 get what was not rounded.
Result<Tensor> make_bnb_matrix(LinearTensors& linear);

}  // namespace lorad::model
