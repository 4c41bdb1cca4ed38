#include "gpu/device_features.h"

#include <algorithm>

namespace lorad::gpu {
namespace {

template <typename Structure>
void link(VkPhysicalDeviceFeatures2& chain, Structure& structure) {
    structure.pNext = chain.pNext;
    chain.pNext = &structure;
}

}  // namespace

FeatureChain::FeatureChain(const std::vector<std::string>& present, bool kernel_statistics) {
    const auto link_if_present = [&](const char* extension, auto& structure) {
        if (std::find(present.begin(), present.end(), extension) == present.end()) return;
        link(core, structure);
        extensions.push_back(extension);
    };
    link(core, v11);
    link(core, v12);
    link(core, v13);
    link_if_present(VK_KHR_WORKGROUP_MEMORY_EXPLICIT_LAYOUT_EXTENSION_NAME, workgroup_layout);
    link_if_present(VK_NV_SHADER_SM_BUILTINS_EXTENSION_NAME, sm_builtins);
    if (kernel_statistics) link_if_present(VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME, executable_properties);
#ifdef VK_KHR_cooperative_matrix
    link_if_present(VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME, coopmat);
#endif
#ifdef VK_KHR_shader_bfloat16
    link_if_present(VK_KHR_SHADER_BFLOAT16_EXTENSION_NAME, bfloat16);
#endif
#ifdef VK_NV_cooperative_matrix2
    link_if_present(VK_NV_COOPERATIVE_MATRIX_2_EXTENSION_NAME, coopmat2);
#endif
}

std::string FeatureChain::missing_required() const {
    std::string missing;
    const auto require = [&](VkBool32 there, const char* name) {
        if (!there) missing += (missing.empty() ? "" : ", ") + std::string(name);
    };
    require(core.features.shaderInt64, "shaderInt64");
    require(v12.bufferDeviceAddress, "bufferDeviceAddress");
    require(v12.timelineSemaphore, "timelineSemaphore");
    require(v12.scalarBlockLayout, "scalarBlockLayout");
    require(v12.vulkanMemoryModel, "vulkanMemoryModel");
    require(v12.vulkanMemoryModelDeviceScope, "vulkanMemoryModelDeviceScope");
    require(v13.synchronization2, "synchronization2");
    require(v13.maintenance4, "maintenance4");
    require(v13.subgroupSizeControl, "subgroupSizeControl");
    require(v13.computeFullSubgroups, "computeFullSubgroups");
    return missing;
}

void FeatureChain::keep_only_used() {
    VkPhysicalDeviceFeatures used{};
    used.shaderInt64 = core.features.shaderInt64;
    used.shaderInt16 = core.features.shaderInt16;
    used.shaderFloat64 = core.features.shaderFloat64;
    core.features = used;

    const VkPhysicalDeviceVulkan11Features has11 = v11;
    v11 = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, has11.pNext};
    v11.storageBuffer16BitAccess = has11.storageBuffer16BitAccess;
    v11.uniformAndStorageBuffer16BitAccess = has11.uniformAndStorageBuffer16BitAccess;

    const VkPhysicalDeviceVulkan12Features has12 = v12;
    v12 = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES, has12.pNext};
    v12.bufferDeviceAddress = has12.bufferDeviceAddress;
    v12.timelineSemaphore = has12.timelineSemaphore;
    v12.scalarBlockLayout = has12.scalarBlockLayout;
    v12.vulkanMemoryModel = has12.vulkanMemoryModel;
    v12.vulkanMemoryModelDeviceScope = has12.vulkanMemoryModelDeviceScope;
    v12.storageBuffer8BitAccess = has12.storageBuffer8BitAccess;
    v12.uniformAndStorageBuffer8BitAccess = has12.uniformAndStorageBuffer8BitAccess;
    v12.shaderBufferInt64Atomics = has12.shaderBufferInt64Atomics;
    v12.shaderFloat16 = has12.shaderFloat16;
    v12.shaderInt8 = has12.shaderInt8;
    v12.shaderSubgroupExtendedTypes = has12.shaderSubgroupExtendedTypes;

    const VkPhysicalDeviceVulkan13Features has13 = v13;
    v13 = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES, has13.pNext};
    v13.synchronization2 = has13.synchronization2;
    v13.maintenance4 = has13.maintenance4;
    v13.subgroupSizeControl = has13.subgroupSizeControl;
    v13.computeFullSubgroups = has13.computeFullSubgroups;
    v13.shaderIntegerDotProduct = has13.shaderIntegerDotProduct;
    v13.shaderZeroInitializeWorkgroupMemory = has13.shaderZeroInitializeWorkgroupMemory;
#ifdef VK_KHR_cooperative_matrix
    coopmat.cooperativeMatrixRobustBufferAccess = VK_FALSE;
#endif
}

}  // namespace lorad::gpu
