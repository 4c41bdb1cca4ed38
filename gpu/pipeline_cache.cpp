// The pipeline cache on disk: saves compile time at the next start, and nothing but that depends on it.
#include <cstring>
#include <fstream>
#include <system_error>
#include <vector>

#include <unistd.h>

#include "gpu/device_impl.h"
#include "proto/base/log.h"

namespace lorad::gpu {
namespace {

constexpr uintmax_t kFileBytesMax = uintmax_t{1} << 30;

// Empty for what is no file of a cache's size: a folder, a device.
std::vector<char> read_file(const std::filesystem::path& path) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) return {};
    const uintmax_t size = std::filesystem::file_size(path, error);
    if (error || size > kFileBytesMax) return {};
    std::vector<char> bytes(size);
    std::ifstream in(path, std::ios::binary);
    in.read(bytes.data(), static_cast<std::streamsize>(size));
    bytes.resize(static_cast<size_t>(in.gcount()));
    return bytes;
}

// Why the bytes are not a cache of this device and driver; empty if they are. Drivers should check the same, but
// not all survive a damaged file.
std::string header_fault(const std::vector<char>& bytes, const VkPhysicalDeviceProperties& properties) {
    VkPipelineCacheHeaderVersionOne header;
    if (bytes.size() < sizeof header) return "no file of one, or too short";
    std::memcpy(&header, bytes.data(), sizeof header);
    if (header.headerVersion != VK_PIPELINE_CACHE_HEADER_VERSION_ONE || header.headerSize < sizeof header) {
        return "not a pipeline cache";
    }
    if (header.vendorID != properties.vendorID || header.deviceID != properties.deviceID) {
        return "of another device";
    }
    if (std::memcmp(header.pipelineCacheUUID, properties.pipelineCacheUUID, VK_UUID_SIZE) != 0) {
        return "of another driver version";
    }
    return {};
}

}  // namespace

VkPipelineCache load_pipeline_cache(VkDevice device, const VkPhysicalDeviceProperties& properties,
                                    const std::filesystem::path& path) {
    std::vector<char> bytes;
    std::error_code error;
    if (!path.empty() && std::filesystem::exists(path, error)) {
        bytes = read_file(path);
        const std::string fault = header_fault(bytes, properties);
        if (!fault.empty()) {
            log_warn("pipeline cache {} is {}: starting without it", path.string(), fault);
            bytes.clear();
        }
    }
    VkPipelineCacheCreateInfo info{VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
    info.initialDataSize = bytes.size();
    info.pInitialData = bytes.data();
    VkPipelineCache cache = VK_NULL_HANDLE;
    if (vkCreatePipelineCache(device, &info, nullptr, &cache) != VK_SUCCESS && !bytes.empty()) {
        log_warn("pipeline cache {} was refused by the driver: starting without it", path.string());
        info.initialDataSize = 0;
        vkCreatePipelineCache(device, &info, nullptr, &cache);
    }
    return cache;
}

void write_pipeline_cache(VkDevice device, VkPipelineCache cache, const std::filesystem::path& path) {
    size_t size = 0;
    if (cache == VK_NULL_HANDLE || vkGetPipelineCacheData(device, cache, &size, nullptr) != VK_SUCCESS) return;
    std::vector<char> bytes(size);
    if (vkGetPipelineCacheData(device, cache, &size, bytes.data()) != VK_SUCCESS) return;

    std::error_code error;
    if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) {
        log_warn("pipeline cache {} is not written: it is no regular file", path.string());
        return;
    }
    // Readers see the old file or the new one, never half of one.
    if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
    const std::filesystem::path partial = path.string() + format(".{}.partial", getpid());
    {
        std::ofstream out(partial, std::ios::binary | std::ios::trunc);
        out.write(bytes.data(), static_cast<std::streamsize>(size));
        out.close();
        if (!out) {
            log_warn("pipeline cache {} could not be written", path.string());
            std::filesystem::remove(partial, error);
            return;
        }
    }
    std::filesystem::rename(partial, path, error);
    if (error) {
        log_warn("pipeline cache {} could not be written: {}", path.string(), error.message());
        std::filesystem::remove(partial, error);
    }
}

}  // namespace lorad::gpu
