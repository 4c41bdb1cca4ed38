// Writes a float32 array as NumPy's .npy, little-endian, version 1.0.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "proto/base/result.h"

namespace lorad::model {

// kIo names the file. The product of `shape` is values.size() (CHECK).
Status write_npy(const std::filesystem::path& file, std::span<const uint64_t> shape, std::span<const float> values);

}  // namespace lorad::model
