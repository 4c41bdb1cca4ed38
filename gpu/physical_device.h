// Describes one physical device and checks whether lorad can run on it. Internal to gpu/.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "gpu/device_choice.h"
#include "gpu/vk.h"

namespace lorad::gpu {

// Everything that decides how the logical device is made.
struct PhysicalDevice {
    VkPhysicalDevice vk = VK_NULL_HANDLE;
    VkPhysicalDeviceProperties properties{};
    DeviceCapabilities capabilities;
    std::string rejection;                // empty: usable
    std::string compiles_only;            // why kernels can be compiled for it but not run; empty: they can
    std::vector<std::string> extensions;  // present on the device

    uint32_t compute_family = 0;
    uint32_t transfer_family = 0;  // == compute_family where there is no transfer-only family
    uint32_t n_compute_queues = 0;
    uint32_t timestamp_bits = 0;  // of the compute family; 0: no timestamps
    double timestamp_period_ns = 0;
    // Microseconds from one timestamp to a later one, also across a wrap of the counter.
    double us_between(uint64_t begin, uint64_t end) const {
        const uint64_t mask = timestamp_bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << timestamp_bits) - 1;
        return static_cast<double>((end - begin) & mask) * timestamp_period_ns / 1000.0;
    }
    bool has_memory_budget = false;
    // kernels may have their parameters sooner from a uniform buffer than from push constants: ParamMemory
    bool params_in_buffer = false;

    bool has_extension(const char* name) const;
    bool has_transfer_family() const { return transfer_family != compute_family; }
};

Result<std::vector<PhysicalDevice>> probe_physical_devices(VkInstance instance);

// compile_only: devices that can do that alone are usable.
std::vector<DeviceCandidate> candidates_of(const std::vector<PhysicalDevice>& devices, bool compile_only);

// Bytes still free in the heap that device-local buffers come from.
uint64_t free_device_bytes(VkPhysicalDevice device, bool has_memory_budget, uint32_t heap);

// The memory type for a kind of buffer among `allowed_types`, or -1.
int find_memory_type(const VkPhysicalDeviceMemoryProperties& memory, uint32_t allowed_types, MemoryKind kind);
// The one for device-local buffers that the host writes in place, in the same heap, or -1.
int find_unified_type(const VkPhysicalDeviceMemoryProperties& memory, uint32_t allowed_types);

}  // namespace lorad::gpu
