// What a driver tells of a kernel that it has compiled. Internal to gpu/.
#pragma once

#include <string>

#include "gpu/vk.h"

namespace lorad::gpu {

// "Register Count 134, Stack Size 0, ...", in the driver's own words; empty if it tells nothing. The pipeline was made with
// VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR, the device with VK_KHR_pipeline_executable_properties.
std::string kernel_statistics(VkDevice device, VkPipeline pipeline);

}  // namespace lorad::gpu
