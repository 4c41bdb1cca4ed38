// The numbers of ggml's blocks, exactly: each step of the arithmetic is rounded to f32 as in ggml's own dequantization
// and in the `gguf` package of Python, whose bits these are. Layouts: ggml's src/ggml-common.h.
#pragma once

#include <cstddef>
#include <span>

#include "model/quant/ggml_types.h"

namespace lorad::model {

// Whole blocks: `out` has block_numbers for each block_bytes of `blocks` (CHECK). Only types with is_read. Any thread.
void decode_ggml(GgmlType type, std::span<const std::byte> blocks, std::span<float> out);

}  // namespace lorad::model
