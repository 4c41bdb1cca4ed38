// The tensors of a model in GGUF, in the names, shapes and order of rows that they have in a Hugging Face folder.
#pragma once

#include <vector>

#include "model/config/config.h"
#include "model/files/safetensors.h"
#include "model/gguf/gguf_file.h"
#include "model/gguf/gguf_names.h"
#include "proto/base/result.h"

namespace lorad::model {

// Matrices that are stored as f32, f16 or bf16 in our order of rows are given as they lie; others have a source that
// decodes them. Spans and sources point into the file, or into memory that the tensors' owner (ModelTensors) keeps.
struct GgufTensors {
    std::vector<Tensor> tensors;                // sorted by name
    std::vector<std::vector<std::byte>> owned;  // what had to be put into another order
    std::vector<std::string> notes = {};        // what of the file is passed over
};

// Refuses, by the file's own names, tensors that are missing, unknown, of another shape than the config asks for, or of
// types that are not read. `config` is config_from_gguf()'s.
Result<GgufTensors> tensors_from_gguf(const GgufFile& file, const GgufArchitecture& architecture,
                                      const ModelConfig& config);

}  // namespace lorad::model
