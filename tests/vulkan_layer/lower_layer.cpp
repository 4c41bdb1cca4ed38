// A Vulkan layer that hides features and lowers limits, so that a software device stands for GPUs that are not at hand.
// Explicit:
// VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation:VK_LAYER_LORAD_lower with VK_ADD_LAYER_PATH naming the folder of its
// manifest; LORAD_LOWER_TO names a profile of lower_profiles.h, LORAD_LOWER_HIDE a feature more, LORAD_LOWER_ALLOCATION
// the bytes of the largest allocation. With the validation layer in front of it, that layer sees the lowered device,
// and says what asks for more. This one refuses devices with hidden features, modules that declare a capability that is
// hidden, and allocations that are too large.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

#include "tests/vulkan_layer/lower_profiles.h"

namespace lorad::testing::lower {
namespace {

constexpr const char* kLayerName = "VK_LAYER_LORAD_lower";

const Profile& profile() {
    static const Profile chosen = [] {
        const char* name = std::getenv("LORAD_LOWER_TO");
        const Profile* found = find_profile(name != nullptr ? name : "");
        if (found == nullptr) {
            std::fprintf(stderr, "%s: LORAD_LOWER_TO=%s is no profile of lower_profiles.h\n", kLayerName,
                         name != nullptr ? name : "");
            std::abort();
        }
        Profile lowered = *found;
        if (const char* bytes = std::getenv("LORAD_LOWER_ALLOCATION"))
            lowered.allocation_bytes = std::strtoull(bytes, nullptr, 10);
        return lowered;
    }();
    return chosen;
}

bool is_hidden(std::string_view feature) {
    const char* hidden = std::getenv("LORAD_LOWER_HIDE");
    return hidden != nullptr && feature == hidden;
}

// ------------------------------------------------------------------------------------------------------------- tables

struct InstanceCalls {
    VkInstance instance = VK_NULL_HANDLE;
    PFN_vkGetInstanceProcAddr GetInstanceProcAddr = nullptr;
    PFN_vkDestroyInstance DestroyInstance = nullptr;
    PFN_vkGetPhysicalDeviceProperties2 GetPhysicalDeviceProperties2 = nullptr;
    PFN_vkGetPhysicalDeviceFeatures2 GetPhysicalDeviceFeatures2 = nullptr;
    PFN_vkEnumerateDeviceExtensionProperties EnumerateDeviceExtensionProperties = nullptr;
};

struct DeviceCalls {
    PFN_vkGetDeviceProcAddr GetDeviceProcAddr = nullptr;
    PFN_vkDestroyDevice DestroyDevice = nullptr;
    PFN_vkAllocateMemory AllocateMemory = nullptr;
    PFN_vkCreateShaderModule CreateShaderModule = nullptr;
};

std::shared_mutex g_mutex;  // guards the maps
std::map<void*, InstanceCalls> g_instances;
std::map<void*, DeviceCalls> g_devices;

void* key_of(const void* handle) { return *static_cast<void* const*>(handle); }

InstanceCalls instance_of(const void* handle) {
    std::shared_lock lock(g_mutex);
    return g_instances.at(key_of(handle));
}

DeviceCalls device_of(const void* handle) {
    std::shared_lock lock(g_mutex);
    return g_devices.at(key_of(handle));
}

// ----------------------------------------------------------------------------------------------- features and limits

// The structure of a chain with this type, or null.
template <typename Struct>
Struct* find_in(void* chain, VkStructureType type) {
    for (auto* at = static_cast<VkBaseOutStructure*>(chain); at != nullptr; at = at->pNext) {
        if (at->sType == type) return reinterpret_cast<Struct*>(at);
    }
    return nullptr;
}

void keep(VkBool32& feature, bool kept, const char* name) {
    if (!kept || is_hidden(name)) feature = VK_FALSE;
}
#define KEEP(structure, feature, kept) keep((structure).feature, kept, #feature)

void lower_core(VkPhysicalDeviceFeatures& features) {
    const Profile& p = profile();
    if (p.only_demanded) {
        const VkBool32 int64 = features.shaderInt64;
        features = {};
        features.shaderInt64 = int64;
    }
    KEEP(features, shaderFloat64, p.float64);
    KEEP(features, shaderInt16, p.int16);
    KEEP(features, shaderInt64, true);
}

void lower_features(VkPhysicalDeviceFeatures2& features) {
    const Profile& p = profile();
    lower_core(features.features);
    if (auto* v11 = find_in<VkPhysicalDeviceVulkan11Features>(features.pNext,
                                                              VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES)) {
        KEEP(*v11, storageBuffer16BitAccess, p.storage16);
        KEEP(*v11, uniformAndStorageBuffer16BitAccess, p.storage16);
    }
    if (auto* v12 = find_in<VkPhysicalDeviceVulkan12Features>(features.pNext,
                                                              VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES)) {
        KEEP(*v12, shaderFloat16, p.float16);
        KEEP(*v12, shaderInt8, p.int8);
        KEEP(*v12, storageBuffer8BitAccess, p.storage8);
        KEEP(*v12, uniformAndStorageBuffer8BitAccess, p.storage8);
        KEEP(*v12, shaderBufferInt64Atomics, p.int64_atomics);
        KEEP(*v12, shaderSharedInt64Atomics, p.int64_atomics);
        KEEP(*v12, shaderSubgroupExtendedTypes, p.extended_subgroup_types);
        KEEP(*v12, bufferDeviceAddress, true);
        KEEP(*v12, timelineSemaphore, true);
        KEEP(*v12, scalarBlockLayout, true);
        KEEP(*v12, vulkanMemoryModel, true);
        KEEP(*v12, vulkanMemoryModelDeviceScope, true);
    }
    if (auto* v13 = find_in<VkPhysicalDeviceVulkan13Features>(features.pNext,
                                                              VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES)) {
        KEEP(*v13, shaderIntegerDotProduct, p.dot_products);
        KEEP(*v13, shaderZeroInitializeWorkgroupMemory, !p.only_demanded);
        KEEP(*v13, synchronization2, true);
        KEEP(*v13, maintenance4, true);
        KEEP(*v13, subgroupSizeControl, true);
        KEEP(*v13, computeFullSubgroups, true);
    }
}

void lower_properties(VkPhysicalDeviceProperties& properties) {
    const Profile& p = profile();
    VkPhysicalDeviceLimits& limits = properties.limits;
    std::snprintf(properties.deviceName, sizeof properties.deviceName, "%s (lowered)", p.device_name);
    limits.maxComputeSharedMemorySize = std::min(limits.maxComputeSharedMemorySize, p.shared_memory_bytes);
    limits.maxPushConstantsSize = std::min(limits.maxPushConstantsSize, p.push_constant_bytes);
    limits.maxStorageBufferRange = std::min(limits.maxStorageBufferRange, p.storage_buffer_range);
    limits.maxComputeWorkGroupInvocations = std::min(limits.maxComputeWorkGroupInvocations, p.invocations);
    for (uint32_t& size : limits.maxComputeWorkGroupSize) size = std::min(size, p.invocations);
}

void lower_properties(VkPhysicalDeviceProperties2& properties) {
    const Profile& p = profile();
    lower_properties(properties.properties);
    void* chain = properties.pNext;
    if (auto* v11 = find_in<VkPhysicalDeviceVulkan11Properties>(
            chain, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES)) {
        v11->maxMemoryAllocationSize = std::min(v11->maxMemoryAllocationSize, p.allocation_bytes);
        v11->subgroupSupportedOperations &= p.subgroup_operations;
    }
    if (auto* m3 = find_in<VkPhysicalDeviceMaintenance3Properties>(
            chain, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES)) {
        m3->maxMemoryAllocationSize = std::min(m3->maxMemoryAllocationSize, p.allocation_bytes);
    }
    if (auto* subgroups =
            find_in<VkPhysicalDeviceSubgroupProperties>(chain, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES)) {
        subgroups->supportedOperations &= p.subgroup_operations;
    }
    if (auto* v13 = find_in<VkPhysicalDeviceVulkan13Properties>(
            chain, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES)) {
        v13->maxBufferSize = std::min(v13->maxBufferSize, p.allocation_bytes);
        v13->maxComputeWorkgroupSubgroups =
            std::min(v13->maxComputeWorkgroupSubgroups, std::max(1u, p.invocations / v13->minSubgroupSize));
    }
}

VKAPI_ATTR void VKAPI_CALL GetPhysicalDeviceFeatures2(VkPhysicalDevice device, VkPhysicalDeviceFeatures2* features) {
    instance_of(device).GetPhysicalDeviceFeatures2(device, features);
    lower_features(*features);
}

VKAPI_ATTR void VKAPI_CALL GetPhysicalDeviceFeatures(VkPhysicalDevice device, VkPhysicalDeviceFeatures* features) {
    VkPhysicalDeviceFeatures2 both{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, nullptr, {}};
    GetPhysicalDeviceFeatures2(device, &both);
    *features = both.features;
}

VKAPI_ATTR void VKAPI_CALL GetPhysicalDeviceProperties2(VkPhysicalDevice device,
                                                        VkPhysicalDeviceProperties2* properties) {
    instance_of(device).GetPhysicalDeviceProperties2(device, properties);
    lower_properties(*properties);
}

VKAPI_ATTR void VKAPI_CALL GetPhysicalDeviceProperties(VkPhysicalDevice device,
                                                       VkPhysicalDeviceProperties* properties) {
    VkPhysicalDeviceProperties2 both{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, nullptr, {}};
    GetPhysicalDeviceProperties2(device, &both);
    *properties = both.properties;
}

bool shows(const VkExtensionProperties& extension) {
    const std::string_view name = extension.extensionName;
    const bool is_of_matrices = name.find("cooperative_matrix") != name.npos || name == "VK_KHR_shader_bfloat16";
    if ((is_of_matrices && !profile().matrices) || is_hidden(name)) return false;
    return !profile().only_demanded || name == VK_EXT_MEMORY_BUDGET_EXTENSION_NAME;
}

VKAPI_ATTR VkResult VKAPI_CALL EnumerateDeviceExtensionProperties(VkPhysicalDevice device, const char* layer,
                                                                  uint32_t* n, VkExtensionProperties* properties) {
    if (layer != nullptr && std::strcmp(layer, kLayerName) == 0) {
        *n = 0;
        return VK_SUCCESS;
    }
    const InstanceCalls& next = instance_of(device);
    uint32_t n_all = 0;
    if (const VkResult result = next.EnumerateDeviceExtensionProperties(device, layer, &n_all, nullptr);
        result != VK_SUCCESS)
        return result;
    std::vector<VkExtensionProperties> all(n_all);
    if (const VkResult result = next.EnumerateDeviceExtensionProperties(device, layer, &n_all, all.data());
        result != VK_SUCCESS)
        return result;
    std::erase_if(all, [](const VkExtensionProperties& extension) { return !shows(extension); });
    const auto n_shown = static_cast<uint32_t>(all.size());
    if (properties == nullptr) {
        *n = n_shown;
        return VK_SUCCESS;
    }
    *n = std::min(*n, n_shown);
    std::copy_n(all.begin(), *n, properties);
    return *n < n_shown ? VK_INCOMPLETE : VK_SUCCESS;
}

// -------------------------------------------------------------------------------------------------------- enforcement

void tell(const std::string& what) { std::fprintf(stderr, "%s (%s): %s\n", kLayerName, profile().name, what.c_str()); }

// SPIR-V's number of each capability, and whether the profile has it.
bool allows(uint32_t capability) {
    constexpr uint32_t kFloat16 = 9, kFloat64 = 10, kInt64Atomics = 12, kInt16 = 22, kInt8 = 39, kStorage16 = 4433,
                       kUniform16 = 4434, kStorage8 = 4448, kUniform8 = 4449;
    constexpr uint32_t kDotProduct = 6019, kVote = 62, kBallot = 64, kShuffleRelative = 66, kClustered = 67, kQuad = 68;
    const Profile& p = profile();
    switch (capability) {
        case kFloat16: return p.float16;
        case kFloat64: return p.float64;
        case kInt64Atomics: return p.int64_atomics;
        case kInt16: return p.int16;
        case kInt8: return p.int8;
        case kStorage16:
        case kUniform16: return p.storage16;
        case kStorage8:
        case kUniform8: return p.storage8;
        case kDotProduct: return p.dot_products;
        case kVote: return (p.subgroup_operations & VK_SUBGROUP_FEATURE_VOTE_BIT) != 0;
        case kBallot: return (p.subgroup_operations & VK_SUBGROUP_FEATURE_BALLOT_BIT) != 0;
        case kShuffleRelative: return (p.subgroup_operations & VK_SUBGROUP_FEATURE_SHUFFLE_RELATIVE_BIT) != 0;
        case kClustered: return (p.subgroup_operations & VK_SUBGROUP_FEATURE_CLUSTERED_BIT) != 0;
        case kQuad: return (p.subgroup_operations & VK_SUBGROUP_FEATURE_QUAD_BIT) != 0;
        default: return true;
    }
}

VKAPI_ATTR VkResult VKAPI_CALL CreateShaderModule(VkDevice device, const VkShaderModuleCreateInfo* info,
                                                  const VkAllocationCallbacks* callbacks, VkShaderModule* module) {
    constexpr size_t kHeaderWords = 5;
    constexpr uint32_t kOpCapability = 17;
    const std::span<const uint32_t> words(info->pCode, info->codeSize / 4);
    for (size_t at = kHeaderWords; at + 1 < words.size() && (words[at] & 0xffff) == kOpCapability;
         at += words[at] >> 16) {
        if (allows(words[at + 1])) continue;
        tell("a module declares SPIR-V capability " + std::to_string(words[at + 1]) + ", which is hidden");
        return VK_ERROR_FEATURE_NOT_PRESENT;
    }
    return device_of(device).CreateShaderModule(device, info, callbacks, module);
}

VKAPI_ATTR VkResult VKAPI_CALL AllocateMemory(VkDevice device, const VkMemoryAllocateInfo* info,
                                              const VkAllocationCallbacks* callbacks, VkDeviceMemory* memory) {
    if (info->allocationSize > profile().allocation_bytes) {
        tell("an allocation of " + std::to_string(info->allocationSize) + " bytes, at most " +
             std::to_string(profile().allocation_bytes) + " are allowed");
        return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    }
    return device_of(device).AllocateMemory(device, info, callbacks, memory);
}

// True where all features that are asked for are there; only booleans follow the head of a feature structure.
template <typename Struct>
bool has_all(const Struct& asked, const Struct& there, size_t begin) {
    const auto bytes = [](const Struct& s) { return reinterpret_cast<const std::byte*>(&s); };
    for (size_t at = begin; at + sizeof(VkBool32) <= sizeof(Struct); at += sizeof(VkBool32)) {
        VkBool32 wanted = VK_FALSE, has = VK_FALSE;
        std::memcpy(&wanted, bytes(asked) + at, sizeof wanted);
        std::memcpy(&has, bytes(there) + at, sizeof has);
        if (wanted == VK_TRUE && has != VK_TRUE) return false;
    }
    return true;
}

bool has_what_is_asked(VkPhysicalDevice physical, const VkDeviceCreateInfo& info) {
    VkPhysicalDeviceVulkan13Features v13{};
    v13.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES;
    VkPhysicalDeviceVulkan12Features v12{};
    v12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
    v12.pNext = &v13;
    VkPhysicalDeviceVulkan11Features v11{};
    v11.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES;
    v11.pNext = &v12;
    VkPhysicalDeviceFeatures2 there{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, &v11, {}};
    GetPhysicalDeviceFeatures2(physical, &there);
    void* chain = const_cast<void*>(info.pNext);
    const auto* core = find_in<VkPhysicalDeviceFeatures2>(chain, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2);
    const auto* a11 = find_in<VkPhysicalDeviceVulkan11Features>(chain, v11.sType);
    const auto* a12 = find_in<VkPhysicalDeviceVulkan12Features>(chain, v12.sType);
    const auto* a13 = find_in<VkPhysicalDeviceVulkan13Features>(chain, v13.sType);
    return (core == nullptr || has_all(core->features, there.features, 0)) &&
           (a11 == nullptr || has_all(*a11, v11, sizeof(VkBaseOutStructure))) &&
           (a12 == nullptr || has_all(*a12, v12, sizeof(VkBaseOutStructure))) &&
           (a13 == nullptr || has_all(*a13, v13, sizeof(VkBaseOutStructure)));
}

// ---------------------------------------------------------------------------------------------- instances and devices

template <typename Info>
Info* link_of(const void* chain, VkStructureType type) {
    for (auto* at = static_cast<const VkBaseInStructure*>(chain); at != nullptr; at = at->pNext) {
        auto* info = reinterpret_cast<const Info*>(at);
        if (at->sType == type && info->function == VK_LAYER_LINK_INFO) return const_cast<Info*>(info);
    }
    return nullptr;
}

VKAPI_ATTR VkResult VKAPI_CALL CreateInstance(const VkInstanceCreateInfo* info, const VkAllocationCallbacks* callbacks,
                                              VkInstance* instance) {
    auto* link = link_of<VkLayerInstanceCreateInfo>(info->pNext, VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO);
    if (link == nullptr) return VK_ERROR_INITIALIZATION_FAILED;
    const PFN_vkGetInstanceProcAddr next = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    const auto create = reinterpret_cast<PFN_vkCreateInstance>(next(VK_NULL_HANDLE, "vkCreateInstance"));
    const VkResult result = create(info, callbacks, instance);
    if (result != VK_SUCCESS) return result;
    InstanceCalls calls{*instance, next};
#define LOAD(Name) calls.Name = reinterpret_cast<PFN_vk##Name>(next(*instance, "vk" #Name));
    LOAD(DestroyInstance)
    LOAD(GetPhysicalDeviceProperties2)
    LOAD(GetPhysicalDeviceFeatures2) LOAD(EnumerateDeviceExtensionProperties)
#undef LOAD
        std::unique_lock lock(g_mutex);
    g_instances[key_of(*instance)] = calls;
    return VK_SUCCESS;
}

VKAPI_ATTR void VKAPI_CALL DestroyInstance(VkInstance instance, const VkAllocationCallbacks* callbacks) {
    if (instance == VK_NULL_HANDLE) return;
    void* const key = key_of(instance);
    instance_of(instance).DestroyInstance(instance, callbacks);
    std::unique_lock lock(g_mutex);
    g_instances.erase(key);
}

VKAPI_ATTR VkResult VKAPI_CALL CreateDevice(VkPhysicalDevice physical, const VkDeviceCreateInfo* info,
                                            const VkAllocationCallbacks* callbacks, VkDevice* device) {
    auto* link = link_of<VkLayerDeviceCreateInfo>(info->pNext, VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO);
    if (link == nullptr) return VK_ERROR_INITIALIZATION_FAILED;
    const PFN_vkGetInstanceProcAddr next_instance = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    const PFN_vkGetDeviceProcAddr next = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    if (!has_what_is_asked(physical, *info)) {
        tell("a device with a feature that is hidden");
        return VK_ERROR_FEATURE_NOT_PRESENT;
    }
    const auto create =
        reinterpret_cast<PFN_vkCreateDevice>(next_instance(instance_of(physical).instance, "vkCreateDevice"));
    const VkResult result = create(physical, info, callbacks, device);
    if (result != VK_SUCCESS) return result;
    DeviceCalls calls{next};
#define LOAD(Name) calls.Name = reinterpret_cast<PFN_vk##Name>(next(*device, "vk" #Name));
    LOAD(DestroyDevice)
    LOAD(AllocateMemory)
    LOAD(CreateShaderModule)
#undef LOAD
        std::unique_lock lock(g_mutex);
    g_devices[key_of(*device)] = calls;
    return VK_SUCCESS;
}

VKAPI_ATTR void VKAPI_CALL DestroyDevice(VkDevice device, const VkAllocationCallbacks* callbacks) {
    if (device == VK_NULL_HANDLE) return;
    void* const key = key_of(device);
    device_of(device).DestroyDevice(device, callbacks);
    std::unique_lock lock(g_mutex);
    g_devices.erase(key);
}

VKAPI_ATTR VkResult VKAPI_CALL EnumerateInstanceLayerProperties(uint32_t* n, VkLayerProperties* properties) {
    if (properties == nullptr) {
        *n = 1;
        return VK_SUCCESS;
    }
    if (*n == 0) return VK_INCOMPLETE;
    *n = 1;
    properties[0] = {};
    std::strcpy(properties[0].layerName, kLayerName);
    std::strcpy(properties[0].description, "hides features and lowers limits");
    properties[0].specVersion = VK_API_VERSION_1_3;
    properties[0].implementationVersion = 1;
    return VK_SUCCESS;
}

PFN_vkVoidFunction own_function(std::string_view name);

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL GetDeviceProcAddr(VkDevice device, const char* name) {
    if (const auto own = own_function(name)) return own;
    return device_of(device).GetDeviceProcAddr(device, name);
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL GetInstanceProcAddr(VkInstance instance, const char* name) {
    if (const auto own = own_function(name)) return own;
    if (instance == VK_NULL_HANDLE) return nullptr;
    return instance_of(instance).GetInstanceProcAddr(instance, name);
}

PFN_vkVoidFunction own_function(std::string_view name) {
#define OWN(Name) \
    if (name == "vk" #Name) return reinterpret_cast<PFN_vkVoidFunction>(Name);
    OWN(GetInstanceProcAddr)
    OWN(GetDeviceProcAddr)
    OWN(CreateInstance) OWN(DestroyInstance) OWN(CreateDevice) OWN(DestroyDevice) OWN(EnumerateInstanceLayerProperties)
        OWN(EnumerateDeviceExtensionProperties) OWN(GetPhysicalDeviceFeatures) OWN(GetPhysicalDeviceFeatures2)
            OWN(GetPhysicalDeviceProperties) OWN(GetPhysicalDeviceProperties2) OWN(AllocateMemory)
                OWN(CreateShaderModule)
#undef OWN
                    if (name == "vkGetPhysicalDeviceFeatures2KHR") return reinterpret_cast<PFN_vkVoidFunction>(
                        GetPhysicalDeviceFeatures2);
    if (name == "vkGetPhysicalDeviceProperties2KHR")
        return reinterpret_cast<PFN_vkVoidFunction>(GetPhysicalDeviceProperties2);
    return nullptr;
}

}  // namespace
}  // namespace lorad::testing::lower

extern "C" __attribute__((visibility("default"))) VkResult
vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface* interface) {
    using namespace lorad::testing::lower;
    if (interface->loaderLayerInterfaceVersion < 2) return VK_ERROR_INITIALIZATION_FAILED;
    interface->loaderLayerInterfaceVersion = 2;
    interface->pfnGetInstanceProcAddr = GetInstanceProcAddr;
    interface->pfnGetDeviceProcAddr = GetDeviceProcAddr;
    interface->pfnGetPhysicalDeviceProcAddr = nullptr;
    return VK_SUCCESS;
}
