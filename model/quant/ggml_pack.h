// Blocks of GGUF files in the order of the device's formats (gpu/kernels/formats/weight_format.h), without any number
// changing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "gpu/kernels/formats/weight_format.h"
#include "model/quant/ggml_types.h"

namespace lorad::model {

// nullopt for plain types. Q3_K's codes of 3 bits fit into Q6_K.
std::optional<gpu::WeightFormat> device_format_of(GgmlType type);

// One row, as MatrixSource::pack() says it. blocks: the row's.
void pack_ggml_row(GgmlType type, std::span<const std::byte> blocks, std::span<uint8_t> codes,
                   std::span<std::byte> records);

}  // namespace lorad::model
