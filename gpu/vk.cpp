#include "gpu/vk.h"

#include <string_view>

#include "proto/base/format.h"

namespace lorad::gpu {

std::string vk_result_name(VkResult result) {
    switch (result) {
        case VK_SUCCESS: return "VK_SUCCESS";
        case VK_NOT_READY: return "VK_NOT_READY";
        case VK_TIMEOUT: return "VK_TIMEOUT";
        case VK_INCOMPLETE: return "VK_INCOMPLETE";
        case VK_ERROR_OUT_OF_HOST_MEMORY: return "VK_ERROR_OUT_OF_HOST_MEMORY";
        case VK_ERROR_OUT_OF_DEVICE_MEMORY: return "VK_ERROR_OUT_OF_DEVICE_MEMORY";
        case VK_ERROR_INITIALIZATION_FAILED: return "VK_ERROR_INITIALIZATION_FAILED";
        case VK_ERROR_DEVICE_LOST: return "VK_ERROR_DEVICE_LOST";
        case VK_ERROR_MEMORY_MAP_FAILED: return "VK_ERROR_MEMORY_MAP_FAILED";
        case VK_ERROR_LAYER_NOT_PRESENT: return "VK_ERROR_LAYER_NOT_PRESENT";
        case VK_ERROR_EXTENSION_NOT_PRESENT: return "VK_ERROR_EXTENSION_NOT_PRESENT";
        case VK_ERROR_FEATURE_NOT_PRESENT: return "VK_ERROR_FEATURE_NOT_PRESENT";
        case VK_ERROR_INCOMPATIBLE_DRIVER: return "VK_ERROR_INCOMPATIBLE_DRIVER";
        case VK_ERROR_TOO_MANY_OBJECTS: return "VK_ERROR_TOO_MANY_OBJECTS";
        case VK_ERROR_UNKNOWN: return "VK_ERROR_UNKNOWN";
        default: return format("VkResult {}", static_cast<int>(result));
    }
}

Error vk_error(const char* call, VkResult result) {
    // The text of the call starts with its name; its arguments are noise to an operator.
    std::string_view name(call);
    name = name.substr(0, name.find('('));
    ErrorCode code = ErrorCode::kInternal;
    if (result == VK_ERROR_DEVICE_LOST) code = ErrorCode::kDeviceLost;
    if (result == VK_ERROR_OUT_OF_DEVICE_MEMORY || result == VK_ERROR_OUT_OF_HOST_MEMORY) {
        code = ErrorCode::kOutOfMemory;
    }
    return make_error(code, format("Vulkan: {} failed with {}", name, vk_result_name(result)));
}

std::string vk_version_text(uint32_t version) {
    return format("{}.{}.{}", VK_API_VERSION_MAJOR(version), VK_API_VERSION_MINOR(version),
                  VK_API_VERSION_PATCH(version));
}

}  // namespace lorad::gpu
