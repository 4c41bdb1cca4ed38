// The numbers of a file's matrix in the type that they have on the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gpu/kernels/scalar_type.h"
#include "model/safetensors.h"
#include "proto/base/result.h"

namespace lorad::model {

// Rounds to the nearest number of the type, of two equally near ones to the even one (IEEE 754). False where a finite number is beyond the type.
// out: from.size() numbers.
bool narrow(std::span<const float> from, gpu::ScalarType type, std::byte* out);

// Rows of a matrix [n][k] in `type`, without gaps, whatever the file's type is. Works on several threads. out: n_rows * k numbers.
// kInvalidModel names the tensor where a number is beyond the type, or a packed one is not finite.
Status decode_rows(const Tensor& tensor, uint64_t row_begin, uint64_t n_rows, gpu::ScalarType type, std::span<std::byte> out);

}  // namespace lorad::model
