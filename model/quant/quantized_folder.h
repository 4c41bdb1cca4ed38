// A Hugging Face folder's tensors, those of each quantized layer joined to one matrix.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "model/files/safetensors.h"
#include "model/quant/quantization_config.h"

namespace lorad::model {

// `tensors` with NAME.weight (DType::kPacked) in the place of those of which the config's method makes the matrix of
// layer NAME; all others as they are, such as layers that were left in 16 bits. What only tells how activations or the
// KV cache were rounded is dropped. Sorted by name.
// kInvalidModel names the tensor that is missing, that belongs to no matrix or that does not fit the others, and
// tensors of few bits in a folder whose config tells no method, or the other way round. Looks at sizes and indices;
// scales and codes are looked at when numbers are decoded.
Result<std::vector<Tensor>> join_quantized(std::span<const Tensor> tensors, const QuantizationConfig& config);

// TensorFiles::map_folder() with its tensors joined.
Result<TensorFiles> map_quantized_folder(const std::filesystem::path& folder, const QuantizationConfig& config);

}  // namespace lorad::model
