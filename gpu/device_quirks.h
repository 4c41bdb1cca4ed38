// The known faults of particular drivers: the one table of such knowledge. Internal to gpu/.
#pragma once

#include "gpu/vk.h"

namespace lorad::gpu {

struct DeviceQuirk {
    const char* what = "";  // for the log and `lorad devices`: the fault and what is done about it
    bool disable_coopmat = false;
    bool disable_coopmat2 = false;
    bool no_separate_transfer_queue = false;
};

// The union of all entries that match; `what` of the first one.
DeviceQuirk quirks_of(const VkPhysicalDeviceProperties& device, const VkPhysicalDeviceDriverProperties& driver);

// The first version of this driver that has all that lorad needs, where the hardware can: "Mesa 22.0"; empty: not
// known.
const char* first_version_that_serves(VkDriverId driver);

}  // namespace lorad::gpu
