// What somebody gave as a base model: whether it may be one, and else what it is and what to give instead.
#pragma once

#include <filesystem>

#include "proto/base/result.h"
#include "proto/json.h"

namespace lorad::model {

// Looks at names and at a file's first bytes only. Host paths stand in the messages: they are for whoever starts the program.
Status check_model_folder(const std::filesystem::path& folder);

// Why weights with this quantization_config (or MLX's quantization) of a config.json are not read.
Error quantized_weights(const JsonValue& quantization);

}  // namespace lorad::model
