// The config of families whose layers are more than Llama's, from the fields of a GGUF file: said in the words of config.json, which the family's own reader reads.
#pragma once

#include "model/config/config.h"
#include "model/gguf/gguf_file.h"
#include "model/gguf/gguf_names.h"
#include "proto/base/result.h"

namespace lorad::model {

// Without generation settings. kInvalidModel names fields that are missing, out of bounds, or say what lorad does not compute.
Result<ModelConfig> family_config_from_gguf(const GgufFile& file, const GgufArchitecture& architecture);

// Layers behind the model's own, which draft several tokens at once: their tensors are passed over.
uint32_t n_drafting_layers(const GgufFile& file, const GgufArchitecture& architecture);

}  // namespace lorad::model
