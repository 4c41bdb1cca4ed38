// Internal to gpu/.
#pragma once

#include <mutex>

#include "gpu/device_health.h"
#include "gpu/device_impl.h"
#include "gpu/pipeline.h"
#include "gpu/vk.h"

namespace lorad::gpu {

struct KernelImpl {
    VkDevice device = VK_NULL_HANDLE;
    const DeviceHealth* health = nullptr;      // the device's
    VkPipelineLayout layout = VK_NULL_HANDLE;  // one of the device's
    bool params_in_buffer = false;
    VkPipeline pipeline = VK_NULL_HANDLE;
    // Set for a kernel from text, instead of a pipeline.
    const TextKernelFunctions* text = nullptr;  // the device's
    VkCuModuleNVX text_module = VK_NULL_HANDLE;
    VkCuFunctionNVX function = VK_NULL_HANDLE;
    uint32_t threads = 0;
    KernelStatistics statistics;  // with DeviceOptions::kernel_statistics
    mutable std::mutex use_mutex;
    mutable KernelUse use;  // guarded by use_mutex; on a device that only compiles

    KernelImpl() = default;
    ~KernelImpl();
    KernelImpl(const KernelImpl&) = delete;
    KernelImpl& operator=(const KernelImpl&) = delete;
};

}  // namespace lorad::gpu
