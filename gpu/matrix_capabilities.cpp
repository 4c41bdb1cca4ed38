#include "gpu/matrix_capabilities.h"

#include <string>
#include <vector>

#include "proto/base/format.h"

namespace lorad::gpu {
namespace {

#ifdef VK_KHR_cooperative_matrix
// Lists what vkGetPhysicalDevice...PropertiesKHR/NV gives; the function may be absent.
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

// Returns true for an entry of either list with the scope's matrices of this type and sums in f32.
template <class Properties>
bool sums_in_f32(const Properties& s, VkComponentTypeKHR input, VkScopeKHR scope) {
    return s.AType == input && s.BType == input && s.CType == VK_COMPONENT_TYPE_FLOAT32_KHR &&
           s.ResultType == VK_COMPONENT_TYPE_FLOAT32_KHR && s.scope == scope;
}

struct MatrixShapes {
    std::vector<VkCooperativeMatrixPropertiesKHR> listed;
#ifdef VK_NV_cooperative_matrix2
    std::vector<VkCooperativeMatrixFlexibleDimensionsPropertiesNV>
        flexible;  // multiples of what they say; empty where the device has none
#endif

    // A subgroup's product of 16 x 16 by 16 x n.
    bool has_16x16_by(uint32_t n, VkComponentTypeKHR input) const {
        for (const auto& s : listed) {
            if (s.MSize == 16 && s.NSize == n && s.KSize == 16 && sums_in_f32(s, input, VK_SCOPE_SUBGROUP_KHR))
                return true;
        }
#ifdef VK_NV_cooperative_matrix2
        for (const auto& s : flexible) {
            const bool divides = 16 % s.MGranularity == 0 && n % s.NGranularity == 0 && 16 % s.KGranularity == 0;
            if (divides && sums_in_f32(s, input, VK_SCOPE_SUBGROUP_KHR)) return true;
        }
#endif
        return false;
    }

    // "8x16x16", of a subgroup's with these inputs and sums in f32.
    std::string text(VkComponentTypeKHR input) const {
        std::string all;
        for (const auto& s : listed) {
            if (sums_in_f32(s, input, VK_SCOPE_SUBGROUP_KHR))
                all += format("{}{}x{}x{}", all.empty() ? "" : ", ", s.MSize, s.NSize, s.KSize);
        }
        return all.empty() ? "none" : all;
    }

#ifdef VK_NV_cooperative_matrix2
    bool has_workgroups(VkComponentTypeKHR input) const {
        for (const auto& s : flexible) {
            if (sums_in_f32(s, input, VK_SCOPE_WORKGROUP_KHR)) return true;
        }
        return false;
    }
#endif
};

MatrixShapes read_shapes(VkInstance instance, VkPhysicalDevice device, [[maybe_unused]] bool flexible) {
    MatrixShapes shapes;
    shapes.listed =
        list_properties<VkCooperativeMatrixPropertiesKHR, PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR>(
            instance, device, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR",
            VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR);
#ifdef VK_NV_cooperative_matrix2
    if (!flexible) return shapes;
    shapes.flexible = list_properties<VkCooperativeMatrixFlexibleDimensionsPropertiesNV,
                                      PFN_vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV>(
        instance, device, "vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV",
        VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_FLEXIBLE_DIMENSIONS_PROPERTIES_NV);
#endif
    return shapes;
}
#endif

}  // namespace

void read_matrix_capabilities([[maybe_unused]] VkInstance instance, [[maybe_unused]] PhysicalDevice& device,
                              [[maybe_unused]] const FeatureChain& features,
                              [[maybe_unused]] const DeviceQuirk& quirk) {
#ifdef VK_KHR_cooperative_matrix
    DeviceCapabilities& caps = device.capabilities;
    if (!features.coopmat.cooperativeMatrix || quirk.disable_coopmat) {
        caps.no_coopmat_f16 = caps.no_bfloat16_coopmat =
            quirk.disable_coopmat ? std::string(quirk.what) : std::string(VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME);
        return;
    }
    bool flexible = false;
#ifdef VK_NV_cooperative_matrix2
    flexible = !quirk.disable_coopmat2 && features.coopmat2.cooperativeMatrixFlexibleDimensions;
#endif
    const MatrixShapes shapes = read_shapes(instance, device.vk, flexible);
    // Kernels store operands as 16-bit values, so the storage feature belongs to the capability.
    caps.coopmat_f16_16x8 = caps.float16 && shapes.has_16x16_by(8, VK_COMPONENT_TYPE_FLOAT16_KHR);
    const auto lack = [&](VkComponentTypeKHR input, const char* type) {
        return format("cooperative matrices of {} of 16x16x16 with sums in f32: the driver lists {}", type,
                      shapes.text(input));
    };
    caps.coopmat_f16 = caps.float16 && shapes.has_16x16_by(16, VK_COMPONENT_TYPE_FLOAT16_KHR);
    if (!caps.coopmat_f16)
        caps.no_coopmat_f16 =
            caps.float16 ? lack(VK_COMPONENT_TYPE_FLOAT16_KHR, "f16") : "shaderFloat16 with 16-bit storage";
#ifdef VK_KHR_shader_bfloat16
    const bool bfloat16 = features.bfloat16.shaderBFloat16Type && features.bfloat16.shaderBFloat16CooperativeMatrix &&
                          features.v11.storageBuffer16BitAccess;
    caps.bfloat16_coopmat = bfloat16 && shapes.has_16x16_by(16, VK_COMPONENT_TYPE_BFLOAT16_KHR);
    if (!caps.bfloat16_coopmat) {
        caps.no_bfloat16_coopmat =
            bfloat16 ? lack(VK_COMPONENT_TYPE_BFLOAT16_KHR, "bf16")
                     : std::string(VK_KHR_SHADER_BFLOAT16_EXTENSION_NAME) + " with shaderBFloat16CooperativeMatrix";
    }
#endif
#ifdef VK_NV_cooperative_matrix2
    caps.matrix_functions =
        caps.coopmat_f16 && !quirk.disable_coopmat2 && features.coopmat2.cooperativeMatrixReductions &&
        features.coopmat2.cooperativeMatrixConversions && features.coopmat2.cooperativeMatrixPerElementOperations;
    const bool workgroups = flexible && features.coopmat2.cooperativeMatrixWorkgroupScope &&
                            features.coopmat2.cooperativeMatrixTensorAddressing;
    caps.coopmat2 = workgroups && caps.float16 && shapes.has_workgroups(VK_COMPONENT_TYPE_FLOAT16_KHR);
#ifdef VK_KHR_shader_bfloat16
    caps.coopmat2_bfloat16 = caps.coopmat2 && bfloat16 && shapes.has_workgroups(VK_COMPONENT_TYPE_BFLOAT16_KHR);
#endif
#endif
#endif
}

}  // namespace lorad::gpu
