#include "gpu/device_quirks.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kAnyVersion = 0xffffffffu;
constexpr uint32_t kVendorNvidia = 0x10de;
constexpr uint32_t kVendorIntel = 0x8086;

struct Entry {
    VkDriverId driver;
    uint32_t vendor;                     // 0: any
    uint32_t first_device, last_device;  // PCI ids, inclusive
    uint32_t fixed_in;                   // driverVersion as the driver encodes it; kAnyVersion: not fixed
    DeviceQuirk quirk;
};

// A row costs speed on the devices it names, so it needs a reported fault behind it.
constexpr Entry kEntries[] = {
    {VK_DRIVER_ID_INTEL_OPEN_SOURCE_MESA,
     kVendorIntel,
     0x5690,
     0x56bf,
     kAnyVersion,
     {.what = "Intel Arc A series loses the device in cooperative-matrix kernels: they are off",
      .disable_coopmat = true}},
    {VK_DRIVER_ID_NVIDIA_PROPRIETARY,
     kVendorNvidia,
     0x1e00,
     0x21ff,
     kAnyVersion,
     {.what = "cooperative-matrix kernels are miscompiled for Turing: they are off",
      .disable_coopmat = true,
      .disable_coopmat2 = true}},
};

}  // namespace

DeviceQuirk quirks_of(const VkPhysicalDeviceProperties& device, const VkPhysicalDeviceDriverProperties& driver) {
    DeviceQuirk all;
    for (const Entry& entry : kEntries) {
        if (entry.driver != driver.driverID) continue;
        if (entry.vendor != 0 && entry.vendor != device.vendorID) continue;
        if (device.deviceID < entry.first_device || device.deviceID > entry.last_device) continue;
        if (entry.fixed_in != kAnyVersion && device.driverVersion >= entry.fixed_in) continue;
        if (all.what[0] == 0) all.what = entry.quirk.what;
        all.disable_coopmat |= entry.quirk.disable_coopmat;
        all.disable_coopmat2 |= entry.quirk.disable_coopmat2;
        all.no_separate_transfer_queue |= entry.quirk.no_separate_transfer_queue;
    }
    return all;
}

// When Vulkan 1.3 came, which makes most of it mandatory; only what the drivers' own announcements say.
const char* first_version_that_serves(VkDriverId driver) {
    switch (driver) {
        case VK_DRIVER_ID_MESA_RADV:
        case VK_DRIVER_ID_INTEL_OPEN_SOURCE_MESA: return "Mesa 22.0";
        case VK_DRIVER_ID_MESA_LLVMPIPE: return "Mesa 22.1";
        case VK_DRIVER_ID_NVIDIA_PROPRIETARY: return "NVIDIA 510";
        default: return "";
    }
}

}  // namespace lorad::gpu
