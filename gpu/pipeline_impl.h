// Internal to gpu/.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "gpu/device_health.h"
#include "gpu/device_impl.h"
#include "gpu/pipeline.h"
#include "gpu/vk.h"

namespace lorad::gpu {

// A pipeline for dispatches of some of a kernel's workgroups.
struct SlicedPipeline {
    // workgroups of a slice, so that a kernel still sees whether there is but one
    static constexpr uint32_t kLeastWidth = 2;
    VkPipeline vk = VK_NULL_HANDLE;  // null: the kernel's workgroups may not be parted
    bool all_axes = false;           // else only the first one may be cut
};

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
    std::string module;
    KernelOptions options;  // its module is the one above
    DeviceImpl* owner = nullptr;
    // Made when it is first wanted. Any thread.
    SlicedPipeline sliced() const;
    mutable std::mutex sliced_mutex;
    mutable std::optional<SlicedPipeline> sliced_known;  // guarded by sliced_mutex
    KernelStatistics statistics;                         // with DeviceOptions::kernel_statistics
    mutable std::mutex use_mutex;
    mutable KernelUse use;  // guarded by use_mutex; on a device that only compiles

    KernelImpl() = default;
    ~KernelImpl();
    KernelImpl(const KernelImpl&) = delete;
    KernelImpl& operator=(const KernelImpl&) = delete;
};

}  // namespace lorad::gpu
