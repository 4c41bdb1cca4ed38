#include "gpu/profiler.h"

#include <algorithm>
#include <map>
#include <utility>

#include "gpu/command_impl.h"

namespace lorad::gpu {

Result<std::vector<DispatchTime>> read_dispatch_times(Device& device, const CommandBuffer& recording) {
    const CommandBufferImpl& impl = recording.impl();
    std::vector<DispatchTime> times;
    if (impl.timed.empty()) return times;
    TRY_ASSIGN(const uint64_t completed, device.compute_queue().completed());
    if (impl.last_submission == 0 || impl.last_submission > completed) {
        return make_error(ErrorCode::kInternal, "dispatch times were asked for before the recording had finished");
    }
    const PhysicalDevice& physical = impl.device->physical;

    std::vector<uint64_t> ticks(impl.timed.size() * 2);
    constexpr size_t kPerPool = CommandBufferImpl::kTimedPerPool * 2;
    for (size_t first = 0; first < ticks.size(); first += kPerPool) {
        const size_t n = std::min(kPerPool, ticks.size() - first);
        VK_TRY(vkGetQueryPoolResults(device.impl().vk, impl.query_pools[first / kPerPool], 0, static_cast<uint32_t>(n),
                                     n * sizeof(uint64_t), &ticks[first], sizeof(uint64_t), VK_QUERY_RESULT_64_BIT));
    }
    for (size_t i = 0; i < impl.timed.size(); ++i) {
        times.push_back({impl.timed[i].name, impl.timed[i].bytes, impl.timed[i].flops,
                         physical.us_between(ticks[2 * i], ticks[2 * i + 1]),
                         physical.us_between(ticks[0], ticks[2 * i])});
    }
    return times;
}

std::vector<KernelProfile> sum_by_kernel(const std::vector<DispatchTime>& times) {
    std::map<std::pair<std::string, uint64_t>, KernelProfile> by_kernel;
    for (const DispatchTime& time : times) {
        KernelProfile& sum = by_kernel[{time.name, time.bytes}];
        sum.name = time.name;
        ++sum.n_calls;
        sum.us += time.us;
        sum.bytes += time.bytes;
        sum.flops += time.flops;
    }
    std::vector<KernelProfile> sums;
    for (auto& [kernel, sum] : by_kernel) sums.push_back(std::move(sum));
    std::sort(sums.begin(), sums.end(), [](const KernelProfile& a, const KernelProfile& b) { return a.us > b.us; });
    return sums;
}

}  // namespace lorad::gpu
