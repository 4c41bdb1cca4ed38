// Rows of numbers in few bits: what `lorad quantize` and --quantize make of a model in 16 or 32 bits.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "model/files/safetensors.h"
#include "model/quant/ggml_types.h"
#include "proto/base/result.h"

namespace lorad::model {

enum class QuantizeType { kQ8_0, kQ4_K, kQ6_K, kNf4 };
// "q8_0", "q4_k", "q6_k", "nf4"; kInvalidConfig names what is read.
Result<QuantizeType> parse_quantize_type(std::string_view text);

// One row as blocks of Q8_0, Q4_K or Q6_K, of which it is a whole number. Deterministic. Q8_0 has the nearest code of
// each number; the K types' scales and minima are fitted to the numbers' squares, as the layout of the type (ggml's)
// leaves that to the writer. Numbers are finite.
void quantize_row(GgmlType type, std::span<const float> numbers, std::span<std::byte> blocks);

// The type for a tensor of a model in 16 or 32 bits; nullopt: it stays. Linear layers get the requested type; embedding
// and output layer get Q8_0 with q8_0 and Q6_K with q4_k and q6_k, and stay with nf4. Rows that are no whole
// blocks of a K type get Q8_0, or stay.
std::optional<GgmlType> ggml_type_for(const Tensor& tensor, QuantizeType type);

// Which matrices of these files, as they were before quantize_tensors(), do not get the requested type, and why: a
// sentence for people. Empty: all do.
std::string quantize_note(const TensorFiles& files, QuantizeType type);

// `files` with every such tensor told as a packed matrix, which is quantized when somebody reads it: for --quantize.
// Packed ones stay as they are.
void quantize_tensors(TensorFiles& files, QuantizeType type);

}  // namespace lorad::model
