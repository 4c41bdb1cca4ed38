#include "gpu/kernel_statistics.h"

#include <vector>

#include "proto/base/format.h"

namespace lorad::gpu {
namespace {

double number_of(const VkPipelineExecutableStatisticKHR& statistic) {
    switch (statistic.format) {
        case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_BOOL32_KHR: return statistic.value.b32 != 0 ? 1.0 : 0.0;
        case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_INT64_KHR: return static_cast<double>(statistic.value.i64);
        case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_FLOAT64_KHR: return statistic.value.f64;
        default: return static_cast<double>(statistic.value.u64);
    }
}

}  // namespace

std::string KernelStatistics::text() const {
    std::string text;
    for (const auto& [name, value] : values) text += format("{}{} {}", text.empty() ? "" : ", ", name, value);
    return text;
}

std::optional<double> KernelStatistics::find(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names) {
        for (const auto& [told, value] : values) {
            if (told == name) return value;
        }
    }
    return std::nullopt;
}

KernelStatistics kernel_statistics(VkDevice device, VkPipeline pipeline) {
    const auto properties = reinterpret_cast<PFN_vkGetPipelineExecutablePropertiesKHR>(
        vkGetDeviceProcAddr(device, "vkGetPipelineExecutablePropertiesKHR"));
    const auto statistics = reinterpret_cast<PFN_vkGetPipelineExecutableStatisticsKHR>(
        vkGetDeviceProcAddr(device, "vkGetPipelineExecutableStatisticsKHR"));
    if (properties == nullptr || statistics == nullptr) return {};
    const VkPipelineInfoKHR whole{VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR, nullptr, pipeline};
    uint32_t n_executables = 0;
    if (properties(device, &whole, &n_executables, nullptr) != VK_SUCCESS) return {};
    KernelStatistics told;
    std::vector<VkPipelineExecutablePropertiesKHR> executables(
        n_executables, {VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_PROPERTIES_KHR, nullptr, 0, {}, {}, 0});
    if (properties(device, &whole, &n_executables, executables.data()) != VK_SUCCESS) return {};
    if (n_executables > 0) told.subgroup_size = executables.front().subgroupSize;
    for (uint32_t i = 0; i < n_executables; ++i) {
        const VkPipelineExecutableInfoKHR executable{VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR, nullptr, pipeline,
                                                     i};
        uint32_t n = 0;
        if (statistics(device, &executable, &n, nullptr) != VK_SUCCESS) continue;
        std::vector<VkPipelineExecutableStatisticKHR> all(
            n, {VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR, nullptr, {}, {}, {}, {}});
        if (statistics(device, &executable, &n, all.data()) != VK_SUCCESS) continue;
        for (const VkPipelineExecutableStatisticKHR& statistic : all) {
            told.values.emplace_back(statistic.name, number_of(statistic));
        }
    }
    return told;
}

}  // namespace lorad::gpu
