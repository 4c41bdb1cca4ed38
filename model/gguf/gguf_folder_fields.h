// The fields of a GGUF file that say what config.json, tokenizer.json and the chat template of a Hugging Face folder
// say.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config/config.h"
#include "model/files/model_files.h"
#include "model/gguf/gguf_writer.h"
#include "proto/base/result.h"

namespace lorad::model {

// kInvalidModel names what has no words in GGUF, or none that lorad writes: rope scalings other than linear and
// llama3's, windows that differ between layers, tokenizers other than byte-level BPE whose words GGUF has a name for.
Status write_folder_fields(const std::filesystem::path& folder, const ModelFiles& files, const ModelConfig& config,
                           GgufWriter& writer);

// llama3's scaling as GGUF has it: what divides each frequency, [rotary_dim / 2]; empty: the model has another.
std::vector<float> llama3_factors(const RopeConfig& rope);

}  // namespace lorad::model
