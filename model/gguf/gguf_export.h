// A model in 16 or 32 bits as a quantized GGUF file: `lorad quantize`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "model/quant/quantize.h"
#include "proto/base/result.h"

namespace lorad::model {

// model: a Hugging Face folder or a GGUF file whose matrices are F32, F16 or BF16. All but the matrices of a GGUF file
// is copied; a folder's fields, tokenizer and chat template are written as llama.cpp's converter writes them.
// ggml_type_for() chooses the types. kInvalidModel and kInvalidConfig name what GGUF cannot express: NF4, rope scalings
// other than linear and llama3's, tokenizers other than byte-level BPE with words that GGUF has a name for. on_bytes:
// bytes of tensors done and in all. Takes host memory of some pieces of 16 MiB.
Status export_gguf(const std::filesystem::path& model, QuantizeType type, const std::filesystem::path& out,
                   const std::function<void(uint64_t n_done, uint64_t n)>& on_bytes);

}  // namespace lorad::model
