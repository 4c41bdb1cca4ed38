// Scales and zero points of integer codes as the device has them: WeightFormat::kI4G32 and its like, which GPTQ, AWQ
// and compressed-tensors share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "gpu/kernels/formats/weight_format.h"
#include "model/files/safetensors.h"

namespace lorad::model {

// For codes of 4 or 8 bits with a scale for each group of neighbouring columns. nullopt if the groups are no multiples
// of 32 that end with the row, or the scales are f32.
std::optional<gpu::WeightFormat> integer_format(uint32_t bits, uint64_t group_size, uint64_t k, DType scales);
// Columns for which a record has an entry.
uint32_t group_columns(gpu::WeightFormat format);

// The 16 bits of a scale, and in the highest of all whether they are bf16's.
uint32_t scale_bits(const Tensor& scales, uint64_t i);
// Entry number `group` of a row. zero: 0 to 255.
void put_integer_record(uint64_t group, uint32_t scale_bits, int32_t zero, std::span<std::byte> records);

}  // namespace lorad::model
