// Matrices of few bits in the order in which the device reads them (gpu/kernels/formats/weight_format.h). The only
// writer of bricks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gpu/kernels/formats/weight_format.h"
#include "model/files/safetensors.h"
#include "proto/base/result.h"

namespace lorad::model {

// Rows of a matrix whose source has a device format, as bricks; row_begin is a multiple of gpu::kBrickRows. Works on
// several threads.
// out: gpu::bytes_of(format, n_rows, columns). kInvalidModel names the tensor where a number is not finite, or beyond
// `type`, the 16-bit type into which products on matrix units round it.
Status pack_rows(const Tensor& tensor, uint64_t row_begin, uint64_t n_rows, gpu::ScalarType type,
                 std::span<std::byte> out);

}  // namespace lorad::model
