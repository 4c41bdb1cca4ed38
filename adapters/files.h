// The two files of an adapter folder, read once and whole, and their digest.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "proto/base/result.h"

namespace lorad::adapters {

inline constexpr std::string_view kConfigFile = "adapter_config.json";
inline constexpr std::string_view kWeightsFile = "adapter_model.safetensors";
inline constexpr uint64_t kWeightsBytesMax = uint64_t{8} << 30;

// Move-only; the bytes stay where they are when it is moved.
struct FileBytes {
    std::unique_ptr<std::byte[]> bytes;
    size_t size = 0;
    std::span<const std::byte> span() const { return {bytes.get(), size}; }
    std::string_view text() const { return {reinterpret_cast<const char*>(bytes.get()), size}; }
};

struct AdapterFiles {
    FileBytes config, weights;
    std::string generation;
};

// kAdapterNotFound: no such folder. kAdapterUnsupported: a format that is not read (pickle, GGUF, MLX, shards), by name.
// kAdapterInvalid: a file is missing, not a regular file or too large. kIo: reading failed.
Result<AdapterFiles> read_adapter_files(const std::filesystem::path& folder);

// 64 lower-case hex digits.
std::string sha256_hex(std::span<const std::byte> bytes);

// The identity of an adapter's content; the same as: sha256sum adapter_config.json adapter_model.safetensors | sha256sum
std::string generation_of(std::span<const std::byte> config, std::span<const std::byte> weights);

}  // namespace lorad::adapters
