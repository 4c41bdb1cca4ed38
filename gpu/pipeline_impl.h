// Internal to gpu/.
#pragma once

#include "gpu/vk.h"

namespace lorad::gpu {

struct KernelImpl {
    VkDevice device = VK_NULL_HANDLE;
    VkPipelineLayout layout = VK_NULL_HANDLE;  // the device's
    VkPipeline pipeline = VK_NULL_HANDLE;

    KernelImpl() = default;
    ~KernelImpl();
    KernelImpl(const KernelImpl&) = delete;
    KernelImpl& operator=(const KernelImpl&) = delete;
};

}  // namespace lorad::gpu
