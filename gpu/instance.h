// The Vulkan instance: loader, validation layer and its messages. Internal to gpu/.
#pragma once

#include <atomic>
#include <memory>

#include "gpu/vk.h"
#include "proto/base/result.h"

namespace lorad::gpu {

class Instance {
  public:
    // kNoDevice if there is no loader that speaks Vulkan 1.3. A requested validation layer that is not installed is a
    // warning, not an error.
    static Result<std::unique_ptr<Instance>> create(bool validation);
    ~Instance();
    Instance(const Instance&) = delete;
    Instance& operator=(const Instance&) = delete;

    VkInstance vk() const { return instance_; }
    bool validation_active() const { return messenger_ != VK_NULL_HANDLE; }
    uint64_t validation_message_count() const { return n_messages_.load(); }

  private:
    Instance() = default;
    static VKAPI_ATTR VkBool32 VKAPI_CALL on_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                                     VkDebugUtilsMessageTypeFlagsEXT types,
                                                     const VkDebugUtilsMessengerCallbackDataEXT* data, void* user);

    VkInstance instance_ = VK_NULL_HANDLE;
    VkDebugUtilsMessengerEXT messenger_ = VK_NULL_HANDLE;
    std::atomic<uint64_t> n_messages_ = 0;  // the layer calls back on whatever thread made the call
};

}  // namespace lorad::gpu
