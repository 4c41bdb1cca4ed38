// Checks a path given as the folder of a base model. If it cannot be one, the error says what it is and what to give
// instead.
#pragma once

#include <filesystem>

#include "proto/base/result.h"

namespace lorad::model {

// Looks at names and at a file's first bytes only. Host paths stand in the messages: they are for whoever starts the
// program.
Status check_model_folder(const std::filesystem::path& folder);

}  // namespace lorad::model
