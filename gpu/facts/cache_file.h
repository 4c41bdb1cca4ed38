// Files in the cache folder: read whole, and replaced as a whole, so that readers see the old one or the new one.
// Internal to gpu/.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lorad::gpu {

// Empty for what is no file of a cache's size: a folder, a device.
std::vector<char> read_cache_file(const std::filesystem::path& path);

// `what` begins the warning where it cannot be written: "pipeline cache".
void write_cache_file(const std::filesystem::path& path, std::string_view bytes, const char* what);

}  // namespace lorad::gpu
