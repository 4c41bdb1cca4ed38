// Chooses one of several devices. Plain data, no Vulkan. Internal to gpu/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/base/result.h"

namespace lorad::gpu {

enum class DeviceType { kDiscrete, kIntegrated, kVirtual, kCpu, kOther };  // best first

struct DeviceCandidate {
    std::string name;
    DeviceType type = DeviceType::kOther;
    uint64_t device_local_bytes = 0;
    std::string rejection;  // empty: usable
};

const char* device_type_text(DeviceType type);

// Index of the device to use: `device_index`, or the best one (-1): by type, then by memory, then the first.
// kNoDevice says what is wrong with each and what to do.
Result<size_t> choose_device(const std::vector<DeviceCandidate>& candidates, int device_index);

// Why candidate i was or was not chosen, for people.
std::string choice_reason(const std::vector<DeviceCandidate>& candidates, size_t i, bool chosen, int device_index);

}  // namespace lorad::gpu
