// GPU time of each dispatch of a recording made with RecorderOptions::timestamps, or of all of it with span_timestamps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/command.h"

namespace lorad::gpu {

struct DispatchTime {
    std::string name;
    uint64_t bytes = 0;
    uint64_t flops = 0;
    double us = 0;
    double begin_us = 0;  // since the first dispatch began
};

// Reads the timestamps of the last completed submission of a recording. Empty if it was made without timestamps.
Result<std::vector<DispatchTime>> read_dispatch_times(Device& device, const CommandBuffer& recording);

struct KernelProfile {
    std::string name;
    uint64_t n_calls = 0;
    double us = 0;  // sum
    uint64_t bytes = 0, flops = 0;
};
// Sums by name and bytes, which tell products of different matrices apart, slowest first.
std::vector<KernelProfile> sum_by_kernel(const std::vector<DispatchTime>& times);

}  // namespace lorad::gpu
