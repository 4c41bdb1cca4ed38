#include "gpu/kernel_statistics.h"

#include <vector>

#include "proto/base/format.h"

namespace lorad::gpu {
namespace {

std::string text_of(const VkPipelineExecutableStatisticKHR& statistic) {
    switch (statistic.format) {
        case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_BOOL32_KHR: return statistic.value.b32 != 0 ? "true" : "false";
        case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_INT64_KHR: return format("{}", statistic.value.i64);
        case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_FLOAT64_KHR: return format("{}", statistic.value.f64);
        default: return format("{}", statistic.value.u64);
    }
}

}  // namespace

std::string kernel_statistics(VkDevice device, VkPipeline pipeline) {
    const auto properties =
        reinterpret_cast<PFN_vkGetPipelineExecutablePropertiesKHR>(vkGetDeviceProcAddr(device, "vkGetPipelineExecutablePropertiesKHR"));
    const auto statistics =
        reinterpret_cast<PFN_vkGetPipelineExecutableStatisticsKHR>(vkGetDeviceProcAddr(device, "vkGetPipelineExecutableStatisticsKHR"));
    if (properties == nullptr || statistics == nullptr) return {};
    const VkPipelineInfoKHR whole{VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR, nullptr, pipeline};
    uint32_t n_executables = 0;
    if (properties(device, &whole, &n_executables, nullptr) != VK_SUCCESS) return {};
    std::string text;
    for (uint32_t i = 0; i < n_executables; ++i) {
        const VkPipelineExecutableInfoKHR executable{VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR, nullptr, pipeline, i};
        uint32_t n = 0;
        if (statistics(device, &executable, &n, nullptr) != VK_SUCCESS) continue;
        std::vector<VkPipelineExecutableStatisticKHR> all(n, {VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR, nullptr, {}, {}, {}, {}});
        if (statistics(device, &executable, &n, all.data()) != VK_SUCCESS) continue;
        for (const VkPipelineExecutableStatisticKHR& statistic : all) {
            text += format("{}{} {}", text.empty() ? "" : ", ", statistic.name, text_of(statistic));
        }
    }
    return text;
}

}  // namespace lorad::gpu
