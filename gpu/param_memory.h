// Keeps the parameters of dispatches that read them from a uniform buffer. That is faster than push constants if all
// that a recording works on stays in the cache; a model's steps do not (docs/PERFORMANCE.md, "Parameters"). Slabs are
// kept until the device ends, and in no budget: 4 MiB hold 30,000 dispatches. Internal to gpu/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/device_health.h"
#include "gpu/physical_device.h"
#include "gpu/vk.h"

namespace lorad::gpu {

// Memory of the device that the host writes, in blocks, each of one recording. Thread-safe.
class ParamMemory {
  public:
    static constexpr uint32_t kBlockBytes = 32 << 10;
    static constexpr uint32_t kParamBytesMax = 128;  // of a dispatch, and what a descriptor's range is

    struct Slab {
        VkDeviceMemory memory = VK_NULL_HANDLE;
        VkBuffer buffer = VK_NULL_HANDLE;
        VkDescriptorPool pool = VK_NULL_HANDLE;
        VkDescriptorSet set = VK_NULL_HANDLE;
        std::byte* mapped = nullptr;
    };
    struct Block {
        const Slab* slab = nullptr;
        uint32_t begin = 0;  // in the slab's buffer
    };

    // is_there() says whether the device has such memory.
    Status init(const PhysicalDevice& physical, VkDevice device, const DeviceHealth& health);
    ~ParamMemory();

    bool is_there() const { return layout_ != VK_NULL_HANDLE; }
    VkDescriptorSetLayout layout() const { return layout_; }  // set 0: one uniform buffer with a dynamic offset
    uint32_t alignment() const { return alignment_; }         // of the offset

    Result<Block> take();
    void give_back(const Block& block);

  private:
    Status add_slab();
    void destroy(const Slab& slab) const;

    VkDevice device_ = VK_NULL_HANDLE;
    const DeviceHealth* health_ = nullptr;
    VkDescriptorSetLayout layout_ = VK_NULL_HANDLE;
    uint32_t alignment_ = 0, memory_type_ = 0;

    std::mutex mutex_;  // guards what follows
    std::vector<std::unique_ptr<Slab>> slabs_;
    std::vector<Block> free_;
};

}  // namespace lorad::gpu
