// Which tensors a model's GGUF file must have, by its fields; files that have others are refused.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "model/config/config.h"
#include "model/files/safetensors.h"
#include "model/gguf/gguf_file.h"
#include "model/gguf/gguf_names.h"
#include "proto/base/result.h"

namespace lorad::model {

// Null: the file has none of this name.
const GgufTensor* find_gguf_tensor(const GgufFile& file, std::string_view name);
// kPacked: no type of a plain number.
DType dtype_of(GgmlType type);

struct CheckedTensors {
    std::vector<const GgufTensor*> tensors;  // the model's, in the file's order
    size_t n_drafting = 0;                   // others, of layers that draft several tokens at once
};

// Refuses, by the file's own names, tensors that are missing, unknown, of another shape than the config asks for, or of
// types that are not read. `config` is config_from_gguf()'s.
Result<CheckedTensors> check_gguf_tensors(const GgufFile& file, const GgufArchitecture& architecture,
                                          const ModelConfig& config);

}  // namespace lorad::model
