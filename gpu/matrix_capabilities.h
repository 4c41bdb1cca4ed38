// The cooperative-matrix shapes of a device. Internal to gpu/.
#pragma once

#include "gpu/device_features.h"
#include "gpu/device_quirks.h"
#include "gpu/physical_device.h"

namespace lorad::gpu {

// Fills the coopmat*, bfloat16* members of device.capabilities from `features` (as queried), the shapes that the
// driver lists, and the quirks.
void read_matrix_capabilities(VkInstance instance, PhysicalDevice& device, const FeatureChain& features,
                              const DeviceQuirk& quirk);

}  // namespace lorad::gpu
