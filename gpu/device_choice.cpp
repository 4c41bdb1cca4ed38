#include "gpu/device_choice.h"

#include <tuple>

#include "proto/base/format.h"

namespace lorad::gpu {
namespace {

constexpr const char* kAdvice =
    "install the GPU vendor's driver, or mesa-vulkan-drivers to run on the CPU; VK_DRIVER_FILES names a driver's "
    "json file";

}  // namespace

const char* device_type_text(DeviceType type) {
    switch (type) {
        case DeviceType::kDiscrete: return "discrete GPU";
        case DeviceType::kIntegrated: return "integrated GPU";
        case DeviceType::kVirtual: return "virtual GPU";
        case DeviceType::kCpu: return "CPU";
        case DeviceType::kOther: return "device of unknown type";
    }
    return "";
}

Result<size_t> choose_device(const std::vector<DeviceCandidate>& candidates, int device_index) {
    if (candidates.empty()) {
        return make_error(ErrorCode::kNoDevice, format("no Vulkan device found: {}", kAdvice));
    }
    if (device_index >= 0) {
        const size_t index = static_cast<size_t>(device_index);
        if (index >= candidates.size()) {
            return make_error(ErrorCode::kNoDevice,
                              format("there is no Vulkan device {}: `lorad devices` lists {}, counted from 0",
                                     device_index, candidates.size()),
                              "device");
        }
        if (!candidates[index].rejection.empty()) {
            return make_error(ErrorCode::kNoDevice,
                              format("Vulkan device {} ({}) cannot be used: {}", device_index, candidates[index].name,
                                     candidates[index].rejection),
                              "device");
        }
        return index;
    }
    const auto order = [&](size_t i) {
        const DeviceCandidate& c = candidates[i];
        return std::make_tuple(!c.rejection.empty(), c.type, ~c.device_local_bytes, i);
    };
    size_t best = 0;
    for (size_t i = 1; i < candidates.size(); ++i) {
        if (order(i) < order(best)) best = i;
    }
    if (!candidates[best].rejection.empty()) {
        std::string all;
        for (const DeviceCandidate& c : candidates) {
            all += format("{}{}: {}", all.empty() ? "" : "; ", c.name, c.rejection);
        }
        return make_error(ErrorCode::kNoDevice, format("no usable Vulkan device ({}): {}", all, kAdvice));
    }
    return best;
}

std::string choice_reason(const std::vector<DeviceCandidate>& candidates, size_t i, bool chosen, int device_index) {
    const DeviceCandidate& c = candidates[i];
    if (!c.rejection.empty()) return c.rejection;
    const char* type = device_type_text(c.type);
    if (chosen && device_index >= 0) return format("{}, asked for by its number", type);
    if (chosen) return format("{}, the best usable device", type);
    if (device_index >= 0) return format("usable {}, but another device was asked for", type);
    return format("usable {}, but a better device is there", type);
}

}  // namespace lorad::gpu
