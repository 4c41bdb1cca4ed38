// Small text files of model and adapter folders.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "proto/base/result.h"

namespace lorad::model {

// The whole file. An error carries `code` and says which file and why: missing, not a regular file, larger than
// n_bytes_max, unreadable. A file that grows or shrinks meanwhile is read as far as it goes.
Result<std::string> read_text_file(const std::filesystem::path& file, uint64_t n_bytes_max, ErrorCode code);

}  // namespace lorad::model
