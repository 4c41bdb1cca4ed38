#include "gpu/physical_device.h"

#include <algorithm>
#include <string_view>

#include "gpu/device_features.h"
#include "gpu/device_quirks.h"
#include "gpu/matrix_capabilities.h"
#include "gpu/range_allocator.h"
#include "proto/base/format.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kMinPushConstantBytes = 128;

constexpr const char* kLacks = "lacks ";

// Names the driver that has what is missing, beside the one that is there.
std::string newer_driver(const VkPhysicalDeviceDriverProperties& driver) {
    const std::string_view first = first_version_that_serves(driver.driverID);
    const std::string there = driver.driverName[0] == 0
                                  ? "another driver is needed"
                                  : format("{} {} is installed", driver.driverName, driver.driverInfo);
    return first.empty() ? there + ", a newer one may have it"
                         : format("{}; from {} on it is there, where the hardware can", there, first);
}

void find_queue_families(PhysicalDevice& device) {
    uint32_t n = 0;
    vkGetPhysicalDeviceQueueFamilyProperties(device.vk, &n, nullptr);
    std::vector<VkQueueFamilyProperties> families(n);
    vkGetPhysicalDeviceQueueFamilyProperties(device.vk, &n, families.data());

    int compute = -1;
    int transfer = -1;
    for (uint32_t i = 0; i < n; ++i) {
        const VkQueueFlags flags = families[i].queueFlags;
        if (flags & VK_QUEUE_COMPUTE_BIT) {
            // A family without graphics is preferred: nothing else competes for it.
            if (compute < 0 ||
                ((families[compute].queueFlags & VK_QUEUE_GRAPHICS_BIT) && !(flags & VK_QUEUE_GRAPHICS_BIT))) {
                compute = static_cast<int>(i);
            }
        } else if ((flags & VK_QUEUE_TRANSFER_BIT) && !(flags & VK_QUEUE_GRAPHICS_BIT) && transfer < 0) {
            transfer = static_cast<int>(i);
        }
    }
    if (compute < 0) {
        device.rejection = "no queue family that can compute";
        return;
    }
    device.compute_family = static_cast<uint32_t>(compute);
    device.transfer_family = static_cast<uint32_t>(transfer < 0 ? compute : transfer);
    device.n_compute_queues = families[compute].queueCount;
    device.timestamp_bits = families[compute].timestampValidBits;
    device.capabilities.has_transfer_queue = transfer >= 0;
}

void read_memory(PhysicalDevice& device) {
    VkPhysicalDeviceMemoryProperties memory;
    vkGetPhysicalDeviceMemoryProperties(device.vk, &memory);
    if (memory.memoryHeapCount == 0) {
        device.compiles_only = "there is no hardware behind it, as with RADV_FORCE_FAMILY: nothing can run on it "
                               "(lorad-bench pipelines compiles for it)";
        return;
    }
    device.has_memory_budget = device.has_extension(VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
    const int type = find_memory_type(memory, ~0u, MemoryKind::kDeviceLocal);
    if (type < 0) return;
    const uint32_t heap = memory.memoryTypes[type].heapIndex;
    const VkPhysicalDeviceType kind = device.properties.deviceType;
    device.capabilities.unified_memory =
        (kind == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU || kind == VK_PHYSICAL_DEVICE_TYPE_CPU) &&
        find_unified_type(memory, ~0u) >= 0;
    device.capabilities.device_local_bytes = memory.memoryHeaps[heap].size;
    device.capabilities.device_local_free_bytes = free_device_bytes(device.vk, device.has_memory_budget, heap);
}

// Properties that every Vulkan 1.3 device has, and what drivers tell beyond them.
void read_properties(PhysicalDevice& device) {
    VkPhysicalDeviceProperties2 core{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    VkPhysicalDeviceVulkan11Properties v11{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES};
    VkPhysicalDeviceVulkan12Properties v12{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES};
    VkPhysicalDeviceVulkan13Properties v13{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES};
    core.pNext = &v11;
    v11.pNext = &v12;
    v12.pNext = &v13;
    VkPhysicalDeviceShaderSMBuiltinsPropertiesNV sm{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV};
    VkPhysicalDeviceShaderCoreProperties2AMD amd{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_2_AMD};
    const bool has_sm = device.has_extension(VK_NV_SHADER_SM_BUILTINS_EXTENSION_NAME);
    const bool has_amd = device.has_extension(VK_AMD_SHADER_CORE_PROPERTIES_2_EXTENSION_NAME);
    if (has_sm) v13.pNext = &sm;
    if (has_amd) v13.pNext = &amd;
    vkGetPhysicalDeviceProperties2(device.vk, &core);

    DeviceCapabilities& caps = device.capabilities;
    caps.driver = format("{} {}", v12.driverName, v12.driverInfo);
    // A slab may need that much more than the buffer in it (gpu/memory_pool.cpp).
    const uint64_t largest = std::min(v11.maxMemoryAllocationSize, v13.maxBufferSize);
    caps.max_allocation_bytes =
        largest / RangeAllocator::kAlignment * RangeAllocator::kAlignment - RangeAllocator::kAlignment;
    caps.subgroup_size = v11.subgroupSize;
    caps.subgroup_size_min = v13.minSubgroupSize;
    caps.subgroup_size_max = v13.maxSubgroupSize;
    caps.max_workgroup_subgroups = v13.maxComputeWorkgroupSubgroups;
    if (has_sm) caps.n_compute_units_hint = sm.shaderSMCount;
    if (has_amd) caps.n_compute_units_hint = amd.activeComputeUnitCount;

    caps.subgroup_ballot = (v11.subgroupSupportedOperations & VK_SUBGROUP_FEATURE_BALLOT_BIT) != 0;
    caps.subgroup_vote = (v11.subgroupSupportedOperations & VK_SUBGROUP_FEATURE_VOTE_BIT) != 0;
    constexpr VkSubgroupFeatureFlags kSubgroup =
        VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_ARITHMETIC_BIT | VK_SUBGROUP_FEATURE_SHUFFLE_BIT;
    if (device.rejection.empty() && ((v11.subgroupSupportedStages & VK_SHADER_STAGE_COMPUTE_BIT) == 0 ||
                                     (v11.subgroupSupportedOperations & kSubgroup) != kSubgroup)) {
        device.rejection = format("{}subgroup arithmetic or shuffle in compute shaders", kLacks);
    }
    if (caps.max_push_constant_bytes < kMinPushConstantBytes && device.rejection.empty()) {
        device.rejection =
            format("push constants hold {} bytes, {} are needed", caps.max_push_constant_bytes, kMinPushConstantBytes);
    }
}

PhysicalDevice probe(VkInstance instance, VkPhysicalDevice vk) {
    PhysicalDevice device;
    device.vk = vk;
    vkGetPhysicalDeviceProperties(vk, &device.properties);
    const VkPhysicalDeviceProperties& properties = device.properties;
    device.timestamp_period_ns = properties.limits.timestampPeriod;

    DeviceCapabilities& caps = device.capabilities;
    caps.name = properties.deviceName;
    caps.api_version = vk_version_text(properties.apiVersion);
    caps.is_cpu = properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
    caps.shared_memory_bytes = properties.limits.maxComputeSharedMemorySize;
    caps.max_workgroup_invocations = properties.limits.maxComputeWorkGroupInvocations;
    caps.max_push_constant_bytes = properties.limits.maxPushConstantsSize;

    uint32_t n = 0;
    vkEnumerateDeviceExtensionProperties(vk, nullptr, &n, nullptr);
    std::vector<VkExtensionProperties> extensions(n);
    vkEnumerateDeviceExtensionProperties(vk, nullptr, &n, extensions.data());
    for (const VkExtensionProperties& extension : extensions) device.extensions.push_back(extension.extensionName);

    VkPhysicalDeviceDriverProperties driver{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES};
    VkPhysicalDeviceProperties2 with_driver{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, &driver, {}};
    if (properties.apiVersion >= VK_API_VERSION_1_2) vkGetPhysicalDeviceProperties2(vk, &with_driver);

    find_queue_families(device);
    read_memory(device);
    if (properties.apiVersion < VK_API_VERSION_1_3) {
        device.rejection = format("Vulkan {} is older than 1.3: {}", caps.api_version, newer_driver(driver));
        return device;
    }
    read_properties(device);
    if (device.rejection.starts_with(kLacks)) device.rejection += ": " + newer_driver(driver);

    FeatureChain features(device.extensions);
    vkGetPhysicalDeviceFeatures2(vk, &features.core);
    const std::string missing = features.missing_required();
    if (device.rejection.empty() && !missing.empty())
        device.rejection = format("{}{}: {}", kLacks, missing, newer_driver(driver));
    caps.kernel_statistics = device.has_extension(VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME);
    caps.int64_atomics = features.v12.shaderBufferInt64Atomics;
    caps.multiprocessor_ids = features.sm_builtins.shaderSMBuiltins && caps.subgroup_ballot;
    caps.int16 = features.core.features.shaderInt16;
    caps.float16 = features.v12.shaderFloat16 && features.v11.storageBuffer16BitAccess;

    const DeviceQuirk quirk = quirks_of(properties, driver);
    read_matrix_capabilities(instance, device, features, quirk);
    // Found by PCI number: no extension of Vulkan tells an architecture, and switching this one on costs the driver its
    // own context.
    const bool is_gh100 =
        driver.driverID == VK_DRIVER_ID_NVIDIA_PROPRIETARY && (properties.deviceID & 0xff00) == 0x2300;
    caps.warpgroup_matrices = is_gh100 && caps.coopmat_f16 && device.has_extension(VK_NVX_BINARY_IMPORT_EXTENSION_NAME);
    device.params_in_buffer = driver.driverID == VK_DRIVER_ID_NVIDIA_PROPRIETARY;
    if (quirk.no_separate_transfer_queue) {
        device.transfer_family = device.compute_family;
        caps.has_transfer_queue = false;
    }
    return device;
}

DeviceType type_of(VkPhysicalDeviceType type) {
    switch (type) {
        case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: return DeviceType::kDiscrete;
        case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: return DeviceType::kIntegrated;
        case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: return DeviceType::kVirtual;
        case VK_PHYSICAL_DEVICE_TYPE_CPU: return DeviceType::kCpu;
        default: return DeviceType::kOther;
    }
}

}  // namespace

bool PhysicalDevice::has_extension(const char* name) const {
    return std::find(extensions.begin(), extensions.end(), name) != extensions.end();
}

std::vector<DeviceCandidate> candidates_of(const std::vector<PhysicalDevice>& devices, bool compile_only) {
    std::vector<DeviceCandidate> candidates;
    for (const PhysicalDevice& device : devices) {
        candidates.push_back({device.capabilities.name, type_of(device.properties.deviceType),
                              device.capabilities.device_local_bytes,
                              device.rejection.empty() && !compile_only ? device.compiles_only : device.rejection});
    }
    return candidates;
}

Result<std::vector<PhysicalDevice>> probe_physical_devices(VkInstance instance) {
    uint32_t n = 0;
    VkResult result = vkEnumeratePhysicalDevices(instance, &n, nullptr);
    std::vector<VkPhysicalDevice> handles(n);
    if (result == VK_SUCCESS) result = vkEnumeratePhysicalDevices(instance, &n, handles.data());
    if (result == VK_ERROR_INITIALIZATION_FAILED)
        handles.clear();  // what loaders say when no driver works
    else if (result != VK_SUCCESS && result != VK_INCOMPLETE)
        return vk_error("vkEnumeratePhysicalDevices", result);
    std::vector<PhysicalDevice> devices;
    for (VkPhysicalDevice handle : handles) devices.push_back(probe(instance, handle));
    return devices;
}

uint64_t free_device_bytes(VkPhysicalDevice device, bool has_memory_budget, uint32_t heap) {
    VkPhysicalDeviceMemoryBudgetPropertiesEXT budget{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
    VkPhysicalDeviceMemoryProperties2 memory{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
    if (has_memory_budget) memory.pNext = &budget;
    vkGetPhysicalDeviceMemoryProperties2(device, &memory);
    if (!has_memory_budget) return memory.memoryProperties.memoryHeaps[heap].size;
    const uint64_t limit = budget.heapBudget[heap];
    const uint64_t used = budget.heapUsage[heap];
    return limit > used ? limit - used : 0;
}

int find_unified_type(const VkPhysicalDeviceMemoryProperties& memory, uint32_t allowed_types) {
    constexpr VkMemoryPropertyFlags kWanted = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT |
                                              VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                              VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    constexpr VkMemoryPropertyFlags kUnwanted = VK_MEMORY_PROPERTY_PROTECTED_BIT |
                                                VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT |
                                                VK_MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD;
    const int plain = find_memory_type(memory, allowed_types, MemoryKind::kDeviceLocal);
    if (plain < 0) return -1;
    int best = -1;
    for (uint32_t i = 0; i < memory.memoryTypeCount; ++i) {
        const VkMemoryType& type = memory.memoryTypes[i];
        if ((allowed_types >> i & 1) == 0 || type.heapIndex != memory.memoryTypes[plain].heapIndex ||
            (type.propertyFlags & kWanted) != kWanted || (type.propertyFlags & kUnwanted) != 0)
            continue;
        // The host only writes: without the caches the device need not look into them.
        const bool is_cached = type.propertyFlags & VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
        if (best < 0 || !is_cached) best = static_cast<int>(i);
        if (!is_cached) break;
    }
    return best;
}

int find_memory_type(const VkPhysicalDeviceMemoryProperties& memory, uint32_t allowed_types, MemoryKind kind) {
    int best = -1;
    int64_t best_score = -1;
    for (uint32_t i = 0; i < memory.memoryTypeCount; ++i) {
        if ((allowed_types >> i & 1) == 0) continue;
        const VkMemoryPropertyFlags flags = memory.memoryTypes[i].propertyFlags;
        // AMD's uncached types and protected or lazily allocated memory are never what we want.
        if (flags & (VK_MEMORY_PROPERTY_PROTECTED_BIT | VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT |
                     VK_MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD)) {
            continue;
        }
        const bool device_local = flags & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
        const bool visible = flags & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT;
        const bool coherent = flags & VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
        const bool cached = flags & VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
        int64_t score = 1;
        if (kind == MemoryKind::kDeviceLocal) {
            // The largest device-local heap; in it, the type that is not mapped over the bus.
            if (!device_local) continue;
            score += static_cast<int64_t>(memory.memoryHeaps[memory.memoryTypes[i].heapIndex].size >> 20) * 4;
            if (!visible) score += 1;
        } else {
            if (!visible || !coherent) continue;
            if (!device_local) score += 4;
            // Writers gain from write-combined memory, readers need the cache.
            if (cached == (kind == MemoryKind::kHostReadback)) score += kind == MemoryKind::kHostReadback ? 8 : 2;
        }
        if (score > best_score) {
            best = static_cast<int>(i);
            best_score = score;
        }
    }
    return best;
}

}  // namespace lorad::gpu
