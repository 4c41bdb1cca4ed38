// The pipeline cache on disk: saves compile time at the next start, and nothing but that depends on it. The file is a
// line with lorad's version and a digest, and behind it what the driver gave.
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "gpu/device_impl.h"
#include "gpu/facts/cache_file.h"
#include "proto/base/digest.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/version.h"

namespace lorad::gpu {
namespace {

constexpr std::string_view kFirstWords = "lorad pipelines 1 ";

std::string first_line(std::span<const char> bytes) {
    return format("{}{} {}\n", kFirstWords, version(), sha256_hex(std::as_bytes(bytes)));
}

// Takes off the line that lorad has put in front. Returns why what is behind it is nothing that this version has
// written whole; empty if it is.
std::string line_fault(std::span<const char>& bytes) {
    const std::string_view all(bytes.data(), bytes.size());
    const size_t end = all.find('\n');
    if (!all.starts_with(kFirstWords) || end == std::string_view::npos) return "not a pipeline cache of lorad's";
    const std::string_view words = all.substr(kFirstWords.size(), end - kFirstWords.size());
    const std::string_view made_by = words.substr(0, words.find(' '));
    const std::string_view line = all.substr(0, end + 1);
    bytes = bytes.subspan(end + 1);
    if (made_by != version()) return format("of lorad {}, not {}", made_by, version());
    return line == first_line(bytes) ? std::string() : "damaged";
}

// Why the bytes are not a cache of this device and driver; empty if they are. Drivers should check the same, but
// not all survive a damaged file.
std::string header_fault(std::span<const char> bytes, const VkPhysicalDeviceProperties& properties) {
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
                                    const std::filesystem::path& path, std::string& digest) {
    std::vector<char> file;
    std::span<const char> bytes;
    std::error_code error;
    if (!path.empty() && std::filesystem::exists(path, error)) {
        file = read_cache_file(path);
        bytes = file;
        std::string fault = line_fault(bytes);
        if (fault.empty()) fault = header_fault(bytes, properties);
        if (!fault.empty()) {
            log_warn("pipeline cache {} is {}: starting without it", path.string(), fault);
            bytes = {};
        }
    }
    VkPipelineCacheCreateInfo info{VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
    info.initialDataSize = bytes.size();
    info.pInitialData = bytes.data();
    VkPipelineCache cache = VK_NULL_HANDLE;
    if (vkCreatePipelineCache(device, &info, nullptr, &cache) != VK_SUCCESS && !bytes.empty()) {
        log_warn("pipeline cache {} was refused by the driver: starting without it", path.string());
        info.initialDataSize = 0;
        bytes = {};
        vkCreatePipelineCache(device, &info, nullptr, &cache);
    }
    digest = bytes.empty() ? std::string() : sha256_hex(std::as_bytes(bytes));
    return cache;
}

void write_pipeline_cache(VkDevice device, VkPipelineCache cache, const std::filesystem::path& path,
                          std::string& digest) {
    size_t size = 0;
    if (cache == VK_NULL_HANDLE || vkGetPipelineCacheData(device, cache, &size, nullptr) != VK_SUCCESS) return;
    std::vector<char> bytes(size);
    if (vkGetPipelineCacheData(device, cache, &size, bytes.data()) != VK_SUCCESS) return;
    bytes.resize(size);
    const std::string now = sha256_hex(std::as_bytes(std::span(bytes)));
    if (now == digest) return;
    digest = now;
    std::string file = first_line(bytes);
    file.append(bytes.data(), bytes.size());
    write_cache_file(path, file, "pipeline cache");
}

}  // namespace lorad::gpu
