// The functions of the next layer or driver that the fault layer calls.
#pragma once

#include <vulkan/vulkan.h>

namespace lorad::testing::fault {

struct InstanceTable {
    InstanceTable() = default;
    InstanceTable(VkInstance own, PFN_vkGetInstanceProcAddr next)
        : instance(own),
          GetInstanceProcAddr(next),
          DestroyInstance(reinterpret_cast<PFN_vkDestroyInstance>(next(own, "vkDestroyInstance"))) {}

    VkInstance instance = VK_NULL_HANDLE;
    PFN_vkGetInstanceProcAddr GetInstanceProcAddr = nullptr;
    PFN_vkDestroyInstance DestroyInstance = nullptr;
};

#define LORAD_FAULT_DEVICE_CALLS(CALL)                                                                                 \
    CALL(DestroyDevice)                                                                                                \
    CALL(QueueSubmit2)                                                                                                 \
    CALL(WaitSemaphores) CALL(GetSemaphoreCounterValue) CALL(AllocateMemory) CALL(FreeMemory) CALL(MapMemory)          \
        CALL(BindBufferMemory) CALL(CreateBuffer) CALL(DestroyBuffer) CALL(CreateCommandPool) CALL(DestroyCommandPool) \
            CALL(CreateSemaphore) CALL(DestroySemaphore) CALL(CreateShaderModule) CALL(DestroyShaderModule)            \
                CALL(CreateQueryPool) CALL(DestroyQueryPool) CALL(CreatePipelineLayout) CALL(DestroyPipelineLayout)    \
                    CALL(CreatePipelineCache) CALL(DestroyPipelineCache) CALL(CreateComputePipelines)                  \
                        CALL(DestroyPipeline) CALL(AllocateCommandBuffers) CALL(BeginCommandBuffer)                    \
                            CALL(EndCommandBuffer) CALL(ResetCommandPool) CALL(CmdPipelineBarrier2)                    \
                                CALL(CmdBindPipeline) CALL(CmdPushConstants) CALL(CmdDispatch)                         \
                                    CALL(CmdDispatchIndirect) CALL(CmdFillBuffer) CALL(CmdCopyBuffer)

struct DeviceTable {
    DeviceTable() = default;
    DeviceTable(VkDevice device, PFN_vkGetDeviceProcAddr next) : GetDeviceProcAddr(next) {
#define LORAD_FAULT_LOAD(Name) Name = reinterpret_cast<PFN_vk##Name>(next(device, "vk" #Name));
        LORAD_FAULT_DEVICE_CALLS(LORAD_FAULT_LOAD)
#undef LORAD_FAULT_LOAD
    }

    PFN_vkGetDeviceProcAddr GetDeviceProcAddr = nullptr;
#define LORAD_FAULT_MEMBER(Name) PFN_vk##Name Name = nullptr;
    LORAD_FAULT_DEVICE_CALLS(LORAD_FAULT_MEMBER)
#undef LORAD_FAULT_MEMBER
};

}  // namespace lorad::testing::fault
