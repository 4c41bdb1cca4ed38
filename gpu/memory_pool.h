// Device memory in slabs below the device's allocation limit, sub-allocated. Thread-safe. Internal to gpu/.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/buffer.h"
#include "gpu/device_health.h"
#include "gpu/physical_device.h"
#include "gpu/range_allocator.h"
#include "gpu/vk.h"

namespace lorad::gpu {

// One VkDeviceMemory with one VkBuffer over all of it; buffers are ranges of it. A device that only compiles has
// neither.
struct Slab {
    VkDeviceMemory memory = VK_NULL_HANDLE;
    VkBuffer buffer = VK_NULL_HANDLE;
    uint64_t size = 0;   // bytes taken from the device
    uint64_t first = 0;  // offset in the buffer of range 0: makes its address a multiple of 256
    DeviceAddress address = 0;
    std::byte* mapped = nullptr;
    std::unique_ptr<RangeAllocator> ranges;
};

class MemoryPool;

struct BufferImpl {
    MemoryPool* pool = nullptr;
    Slab* slab = nullptr;
    MemoryKind kind = MemoryKind::kDeviceLocal;
    uint64_t range_offset = 0;  // in slab->ranges
    uint64_t offset = 0;        // in slab->buffer
    uint64_t size = 0;
    std::atomic<uint64_t> last_upload = 0;  // value of the uploader's timeline after its last write; 0: none

    VkBuffer vk() const { return slab->buffer; }
    // Where the host may write a buffer in device memory; null where it may not.
    std::byte* device_bytes() const {
        return kind == MemoryKind::kDeviceLocal && slab->mapped != nullptr ? slab->mapped + offset : nullptr;
    }
};

class MemoryPool {
  public:
    Status init(const PhysicalDevice& physical, VkDevice device, DeviceHealth& health);
    // Called with BufferImpl::last_upload before memory that uploads may still write is given back.
    void on_release(std::function<void(uint64_t)> settle) { settle_ = std::move(settle); }
    ~MemoryPool();

    Result<std::unique_ptr<BufferImpl>> allocate(uint64_t size_bytes, MemoryKind kind, const char* name);
    void release(const BufferImpl& buffer);

    uint64_t device_local_used() const { return device_local_used_.load(); }
    uint64_t device_local_free() const;  // in the heap, plus holes of our own slabs
    uint64_t slab_bytes() const;

  private:
    struct Kind {
        int type = -1;  // memory type index
        uint32_t heap = 0;
        uint64_t slab_bytes = 0;  // of shared slabs
        std::vector<std::unique_ptr<Slab>> slabs;
    };

    Result<std::unique_ptr<Slab>> make_slab(const Kind& kind, uint64_t size, bool host_visible);
    Status check_file_size(uint64_t size) const;
    Result<std::unique_ptr<Slab>> pretend_slab(uint64_t size, bool host_visible);
    void free_slab(Slab& slab);
    Error out_of_memory(uint64_t size_bytes, const char* name, const Kind& kind) const;
    uint64_t free_in_heap(const Kind& kind) const;

    VkDevice device_ = VK_NULL_HANDLE;
    VkPhysicalDevice physical_ = VK_NULL_HANDLE;
    DeviceHealth* health_ = nullptr;
    std::function<void(uint64_t)> settle_;
    bool has_budget_ = false;
    bool is_unified_ = false;  // DeviceCapabilities::unified_memory
    bool memory_is_a_file_ = false;
    uint64_t pretended_bytes_ = 0;                    // of each kind, on a device that only compiles; else 0
    DeviceAddress next_address_ = uint64_t{1} << 32;  // there
    uint64_t max_buffer_ = 0;
    uint64_t address_slack_ = 0;  // bytes to add to a slab whose address may not be a multiple of 256
    std::vector<uint32_t> families_;

    mutable std::mutex mutex_;  // guards kinds_
    std::array<Kind, 3> kinds_;
    std::atomic<uint64_t> device_local_used_ = 0;
};

}  // namespace lorad::gpu
