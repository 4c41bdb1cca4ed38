// The only place that includes Vulkan. Seen by gpu/*.cpp and the *_impl.h headers beside them, by nobody else.
#pragma once

#include <string>

#include <vulkan/vulkan.h>

#include "proto/base/result.h"

namespace lorad::gpu {

std::string vk_result_name(VkResult result);

// The error of a failed call. Out-of-memory and device loss keep their own codes.
Error vk_error(const char* call, VkResult result);

// "1.3.239"
std::string vk_version_text(uint32_t version);

}  // namespace lorad::gpu

// VK_TRY(vkSomething(...)): returns an Error from the enclosing function unless the call gave VK_SUCCESS.
#define VK_TRY(call)                                                                          \
    do {                                                                                      \
        const VkResult vk_try_result = (call);                                                \
        if (vk_try_result != VK_SUCCESS) return ::lorad::gpu::vk_error(#call, vk_try_result); \
    } while (false)
