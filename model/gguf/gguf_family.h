// Makes the config of families with more than Llama's layers: the fields of a GGUF file are said in config.json's
// words, which the family's own reader reads.
#pragma once

#include "model/config/config.h"
#include "model/gguf/gguf_file.h"
#include "model/gguf/gguf_names.h"
#include "proto/base/result.h"

namespace lorad::model {

// The config has no generation settings. kInvalidModel names fields that are missing, out of bounds, or say what lorad
// does not compute.
Result<ModelConfig> family_config_from_gguf(const GgufFile& file, const GgufArchitecture& architecture);

// Counts the layers behind the model's own, which draft several tokens at once: their tensors are passed over.
uint32_t n_drafting_layers(const GgufFile& file, const GgufArchitecture& architecture);

}  // namespace lorad::model
