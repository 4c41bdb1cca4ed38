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
    const uint64_t mask = physical.timestamp_bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << physical.timestamp_bits) - 1;

    std::vector<uint64_t> ticks(impl.timed.size() * 2);
    constexpr size_t kPerPool = CommandBufferImpl::kTimedPerPool * 2;
    for (size_t first = 0; first < ticks.size(); first += kPerPool) {
        const size_t n = std::min(kPerPool, ticks.size() - first);
        VK_TRY(vkGetQueryPoolResults(device.impl().vk, impl.query_pools[first / kPerPool], 0, static_cast<uint32_t>(n),
                                     n * sizeof(uint64_t), &ticks[first], sizeof(uint64_t), VK_QUERY_RESULT_64_BIT));
    }
    for (size_t i = 0; i < impl.timed.size(); ++i) {
        const uint64_t elapsed = (ticks[2 * i + 1] - ticks[2 * i]) & mask;  // right across a wrap of the counter
        times.push_back(
            {impl.timed[i].name, impl.timed[i].bytes, impl.timed[i].flops,
             static_cast<double>(elapsed) * physical.timestamp_period_ns / 1000.0,
             static_cast<double>((ticks[2 * i] - ticks[0]) & mask) * physical.timestamp_period_ns / 1000.0});
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
