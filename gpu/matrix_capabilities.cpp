#include "gpu/matrix_capabilities.h"

#include <vector>

namespace lorad::gpu {
namespace {

#ifdef VK_KHR_cooperative_matrix
// What vkGetPhysicalDevice...PropertiesKHR/NV list, through a function that may be absent.
template <typename Properties, typename Function>
std::vector<Properties> list_properties(VkInstance instance, VkPhysicalDevice device, const char* function_name,
                                        VkStructureType type) {
    auto function = reinterpret_cast<Function>(vkGetInstanceProcAddr(instance, function_name));
    if (function == nullptr) return {};
    uint32_t n = 0;
    if (function(device, &n, nullptr) != VK_SUCCESS) return {};
    Properties empty{};
    empty.sType = type;
    std::vector<Properties> list(n, empty);
    if (n == 0 || function(device, &n, list.data()) < 0) return {};
    list.resize(n);
    return list;
}

bool has_shape_16(const std::vector<VkCooperativeMatrixPropertiesKHR>& shapes, VkComponentTypeKHR input) {
    for (const VkCooperativeMatrixPropertiesKHR& s : shapes) {
        if (s.MSize == 16 && s.NSize == 16 && s.KSize == 16 && s.AType == input && s.BType == input &&
            s.CType == VK_COMPONENT_TYPE_FLOAT32_KHR && s.ResultType == VK_COMPONENT_TYPE_FLOAT32_KHR &&
            s.scope == VK_SCOPE_SUBGROUP_KHR) {
            return true;
        }
    }
    return false;
}
#endif

#ifdef VK_NV_cooperative_matrix2
bool has_flexible_shape(const std::vector<VkCooperativeMatrixFlexibleDimensionsPropertiesNV>& shapes,
                        VkComponentTypeKHR input) {
    for (const VkCooperativeMatrixFlexibleDimensionsPropertiesNV& s : shapes) {
        if (s.AType == input && s.BType == input && s.CType == VK_COMPONENT_TYPE_FLOAT32_KHR &&
            s.ResultType == VK_COMPONENT_TYPE_FLOAT32_KHR && s.scope == VK_SCOPE_WORKGROUP_KHR) {
            return true;
        }
    }
    return false;
}
#endif

}  // namespace

void read_matrix_capabilities([[maybe_unused]] VkInstance instance, [[maybe_unused]] PhysicalDevice& device,
                              [[maybe_unused]] const FeatureChain& features,
                              [[maybe_unused]] const DeviceQuirk& quirk) {
#ifdef VK_KHR_cooperative_matrix
    DeviceCapabilities& caps = device.capabilities;
    if (!features.coopmat.cooperativeMatrix || quirk.disable_coopmat) return;
    const auto shapes = list_properties<VkCooperativeMatrixPropertiesKHR,
                                        PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR>(
        instance, device.vk, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR",
        VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR);
    // Kernels store operands as 16-bit values, so the storage feature belongs to the capability.
    caps.coopmat_f16 = caps.float16 && has_shape_16(shapes, VK_COMPONENT_TYPE_FLOAT16_KHR);
#ifdef VK_KHR_shader_bfloat16
    const bool bfloat16 = features.bfloat16.shaderBFloat16Type &&
                          features.bfloat16.shaderBFloat16CooperativeMatrix &&
                          features.v11.storageBuffer16BitAccess;
    caps.bfloat16_coopmat = bfloat16 && has_shape_16(shapes, VK_COMPONENT_TYPE_BFLOAT16_KHR);
#endif
#ifdef VK_NV_cooperative_matrix2
    caps.matrix_functions = caps.coopmat_f16 && !quirk.disable_coopmat2 && features.coopmat2.cooperativeMatrixReductions &&
                            features.coopmat2.cooperativeMatrixConversions && features.coopmat2.cooperativeMatrixPerElementOperations;
    if (quirk.disable_coopmat2 || !features.coopmat2.cooperativeMatrixWorkgroupScope ||
        !features.coopmat2.cooperativeMatrixFlexibleDimensions ||
        !features.coopmat2.cooperativeMatrixTensorAddressing) {
        return;
    }
    const auto flexible = list_properties<
        VkCooperativeMatrixFlexibleDimensionsPropertiesNV,
        PFN_vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV>(
        instance, device.vk, "vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV",
        VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_FLEXIBLE_DIMENSIONS_PROPERTIES_NV);
    caps.coopmat2 = caps.float16 && has_flexible_shape(flexible, VK_COMPONENT_TYPE_FLOAT16_KHR);
#ifdef VK_KHR_shader_bfloat16
    caps.coopmat2_bfloat16 = caps.coopmat2 && bfloat16 &&
                             has_flexible_shape(flexible, VK_COMPONENT_TYPE_BFLOAT16_KHR);
#endif
#endif
#endif
}

}  // namespace lorad::gpu
