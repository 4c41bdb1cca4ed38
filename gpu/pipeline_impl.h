// Internal to gpu/.
#pragma once

#include <string>

#include "gpu/device_health.h"
#include "gpu/vk.h"

namespace lorad::gpu {

struct KernelImpl {
    VkDevice device = VK_NULL_HANDLE;
    const DeviceHealth* health = nullptr;  // the device's
    VkPipelineLayout layout = VK_NULL_HANDLE;  // the device's
    VkPipeline pipeline = VK_NULL_HANDLE;
    std::string statistics;  // with DeviceOptions::kernel_statistics

    KernelImpl() = default;
    ~KernelImpl();
    KernelImpl(const KernelImpl&) = delete;
    KernelImpl& operator=(const KernelImpl&) = delete;
};

}  // namespace lorad::gpu
