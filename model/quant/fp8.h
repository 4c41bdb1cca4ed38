// FP8 weights (E4M3 without infinities, as OCP's FP8 specification and torch.float8_e4m3fn have it) with scales of a
// matrix, of rows or of blocks.
#pragma once

#include "model/quant/linear_tensors.h"
#include "model/quant/quantization_config.h"

namespace lorad::model {

// The number of a code; 0x7f and 0xff are NaN.
float e4m3_value(uint8_t code);

// The layout of a matrix' scales. Blocks are counted from the matrix' first row and column; those at its ends are cut.
struct Fp8Scales {
    ScaleStrategy strategy = ScaleStrategy::kTensor;  // not kGroup
    uint32_t block_rows = 0, block_columns = 0;
    std::string_view part = "weight_scale";
};

// The matrix of `linear`'s tensors weight (F8_E4M3) and weight_scale, by which numbers are multiplied, in f32.
// kInvalidModel.
Result<Tensor> make_fp8_matrix(LinearTensors& linear, const Fp8Scales& scales);

// The same by the config of quant_method fp8: weight_scale_inv, by which numbers are multiplied too, of blocks, or it
// or weight_scale of a matrix or rows.
Result<Tensor> make_fp8_matrix(LinearTensors& linear, const QuantizationConfig& config);

}  // namespace lorad::model
