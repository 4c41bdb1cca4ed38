// Reads a driver's statistics of a kernel that it has compiled. Internal to gpu/.
#pragma once

#include "gpu/pipeline.h"
#include "gpu/vk.h"

namespace lorad::gpu {

// Empty if the driver tells nothing. The pipeline was made with VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR, the
// device with VK_KHR_pipeline_executable_properties.
KernelStatistics kernel_statistics(VkDevice device, VkPipeline pipeline);

}  // namespace lorad::gpu
