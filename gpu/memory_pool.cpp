#include "gpu/memory_pool.h"

#include <algorithm>

#include <sys/mman.h>
#include <sys/resource.h>

#include "proto/base/format.h"
#include "proto/base/rounding.h"

namespace lorad::gpu {
namespace {

constexpr uint64_t kMiB = 1u << 20;
constexpr uint64_t kDeviceSlabBytes = 256 * kMiB;
constexpr uint64_t kHostSlabBytes = 64 * kMiB;
constexpr uint64_t kCpuSlabBytes = 32 * kMiB;  // lavapipe and the like: memory is the machine's own

const char* kind_text(MemoryKind kind) {
    switch (kind) {
        case MemoryKind::kDeviceLocal: return "device-local";
        case MemoryKind::kHostUpload: return "host upload";
        case MemoryKind::kHostReadback: return "host readback";
    }
    return "";
}

}  // namespace

Status MemoryPool::init(const PhysicalDevice& physical, VkDevice device, DeviceHealth& health) {
    device_ = device;
    health_ = &health;
    physical_ = physical.vk;
    memory_is_a_file_ = physical.capabilities.is_cpu;
    has_budget_ = physical.has_memory_budget;
    is_unified_ = physical.capabilities.unified_memory && !physical.capabilities.compiles_only;
    max_buffer_ = physical.capabilities.max_allocation_bytes;
    if (physical.capabilities.compiles_only) {
        pretended_bytes_ = physical.capabilities.device_local_bytes;
        memory_is_a_file_ = false;
        for (uint32_t i = 0; i < kinds_.size(); ++i) kinds_[i].heap = i;
        return ok_status();
    }
    families_ = {physical.compute_family};
    if (physical.has_transfer_family()) families_.push_back(physical.transfer_family);

    // The requirements of a buffer of lorad's usage tell which memory types it may live in.
    VkBufferCreateInfo info{VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
    info.size = kMiB;
    info.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                 VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT |
                 VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;
    VkDeviceBufferMemoryRequirements query{VK_STRUCTURE_TYPE_DEVICE_BUFFER_MEMORY_REQUIREMENTS, nullptr, &info};
    VkMemoryRequirements2 needs{VK_STRUCTURE_TYPE_MEMORY_REQUIREMENTS_2};
    vkGetDeviceBufferMemoryRequirements(device, &query, &needs);
    if (needs.memoryRequirements.alignment % RangeAllocator::kAlignment != 0) {
        address_slack_ = RangeAllocator::kAlignment;
    }

    VkPhysicalDeviceMemoryProperties memory;
    vkGetPhysicalDeviceMemoryProperties(physical_, &memory);
    for (const MemoryKind k : {MemoryKind::kDeviceLocal, MemoryKind::kHostUpload, MemoryKind::kHostReadback}) {
        Kind& kind = kinds_[static_cast<size_t>(k)];
        kind.type = find_memory_type(memory, needs.memoryRequirements.memoryTypeBits, k);
        if (kind.type < 0) {
            return make_error(ErrorCode::kNoDevice,
                              format("{} has no memory for {} buffers", physical.capabilities.name, kind_text(k)));
        }
        if (is_unified_ && k == MemoryKind::kDeviceLocal) {
            const int shared = find_unified_type(memory, needs.memoryRequirements.memoryTypeBits);
            is_unified_ = shared >= 0;
            if (is_unified_) kind.type = shared;
        }
        kind.heap = memory.memoryTypes[kind.type].heapIndex;
        kind.slab_bytes = k == MemoryKind::kDeviceLocal ? kDeviceSlabBytes : kHostSlabBytes;
        if (physical.capabilities.is_cpu) kind.slab_bytes = kCpuSlabBytes;
        kind.slab_bytes = std::min(kind.slab_bytes, max_buffer_);
    }
    return ok_status();
}

MemoryPool::~MemoryPool() {
    for (Kind& kind : kinds_) {
        for (auto& slab : kind.slabs) {
            CHECK(slab->ranges->empty());  // a Buffer outlived its Device
            free_slab(*slab);
        }
    }
}

Result<std::unique_ptr<BufferImpl>> MemoryPool::allocate(uint64_t size_bytes, MemoryKind kind_name, const char* name) {
    CHECK(size_bytes > 0);
    std::lock_guard lock(mutex_);
    Kind& kind = kinds_[static_cast<size_t>(kind_name)];
    if (size_bytes > max_buffer_) {
        return make_error(ErrorCode::kOutOfMemory,
                          format("buffer '{}' of {} bytes is larger than one allocation of this device may be "
                                 "({} bytes)",
                                 name, size_bytes, max_buffer_));
    }
    auto buffer = std::make_unique<BufferImpl>();
    buffer->pool = this;
    buffer->kind = kind_name;
    buffer->size = size_bytes;
    const uint64_t rounded = round_up(size_bytes, RangeAllocator::kAlignment);

    const auto take_from = [&](Slab& slab) {
        const auto offset = slab.ranges->allocate(rounded);
        if (!offset) return false;
        buffer->slab = &slab;
        buffer->range_offset = *offset;
        buffer->offset = slab.first + *offset;
        return true;
    };
    bool placed = false;
    for (auto& slab : kind.slabs) {
        placed = take_from(*slab);
        if (placed) break;
    }
    if (!placed) {
        // Large buffers get a slab of their own size, so that no hole is left beside them.
        const uint64_t own = rounded + address_slack_;
        const uint64_t wanted = rounded * 2 > kind.slab_bytes ? own : kind.slab_bytes;
        const bool host_visible = kind_name != MemoryKind::kDeviceLocal || is_unified_;
        const uint64_t free_bytes = free_in_heap(kind);
        if (own > free_bytes) return out_of_memory(size_bytes, name, kind);
        TRY(check_file_size(own));
        auto slab = make_slab(kind, std::min(wanted, free_bytes / 256 * 256), host_visible);
        if (!slab.ok() && slab.error().code == ErrorCode::kOutOfMemory && wanted > own) {
            slab = make_slab(kind, own, host_visible);
        }
        if (!slab.ok()) {
            if (slab.error().code == ErrorCode::kOutOfMemory) return out_of_memory(size_bytes, name, kind);
            return std::move(slab).error();
        }
        kind.slabs.push_back(std::move(slab).value());
        CHECK(take_from(*kind.slabs.back()));
    }
    if (kind_name == MemoryKind::kDeviceLocal) device_local_used_ += rounded;
    return buffer;
}

void MemoryPool::release(const BufferImpl& buffer) {
    if (const uint64_t value = buffer.last_upload.load(); value != 0) settle_(value);
    std::lock_guard lock(mutex_);
    Kind& kind = kinds_[static_cast<size_t>(buffer.kind)];
    const uint64_t before = buffer.slab->ranges->used_bytes();
    buffer.slab->ranges->release(buffer.range_offset);
    if (buffer.kind == MemoryKind::kDeviceLocal) {
        device_local_used_ -= before - buffer.slab->ranges->used_bytes();
    }
    if (!buffer.slab->ranges->empty()) return;
    const auto slab =
        std::find_if(kind.slabs.begin(), kind.slabs.end(), [&](const auto& s) { return s.get() == buffer.slab; });
    CHECK(slab != kind.slabs.end());
    free_slab(**slab);
    kind.slabs.erase(slab);
}

// Addresses, and for the host's kinds pages that cost nothing until somebody writes them. Under mutex_.
Result<std::unique_ptr<Slab>> MemoryPool::pretend_slab(uint64_t size, bool host_visible) {
    auto slab = std::make_unique<Slab>();
    slab->size = size;
    slab->address = next_address_;
    next_address_ += round_up(size, RangeAllocator::kAlignment);
    if (host_visible) {
        void* mapped =
            ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapped == MAP_FAILED)
            return make_error(ErrorCode::kOutOfMemory,
                              format("{} bytes of address space for a buffer that is only pretended", size));
        slab->mapped = static_cast<std::byte*>(mapped);
    }
    slab->ranges = std::make_unique<RangeAllocator>(size);
    return slab;
}

Result<std::unique_ptr<Slab>> MemoryPool::make_slab(const Kind& kind, uint64_t size, bool host_visible) {
    if (pretended_bytes_ != 0) return pretend_slab(size, host_visible);
    auto slab = std::make_unique<Slab>();
    // Whatever was created is given back if a later call fails.
    const auto fail = [&](const char* call, VkResult result) {
        free_slab(*slab);
        return vk_error(call, result);
    };
    VkBufferCreateInfo info{VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
    info.size = size;
    info.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                 VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT |
                 VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;
    if (families_.size() > 1) {
        info.sharingMode = VK_SHARING_MODE_CONCURRENT;
        info.queueFamilyIndexCount = static_cast<uint32_t>(families_.size());
        info.pQueueFamilyIndices = families_.data();
    }
    VkResult result = vkCreateBuffer(device_, &info, nullptr, &slab->buffer);
    if (result != VK_SUCCESS) return fail("vkCreateBuffer", result);

    VkMemoryRequirements needs;
    vkGetBufferMemoryRequirements(device_, slab->buffer, &needs);
    if (Status room = check_file_size(needs.size); !room.ok()) {
        free_slab(*slab);
        return room.error();
    }
    VkMemoryAllocateFlagsInfo flags{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO};
    flags.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT;
    VkMemoryAllocateInfo allocation{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, &flags};
    allocation.allocationSize = needs.size;
    allocation.memoryTypeIndex = static_cast<uint32_t>(kind.type);
    result = vkAllocateMemory(device_, &allocation, nullptr, &slab->memory);
    if (result != VK_SUCCESS) return fail("vkAllocateMemory", result);
    slab->size = needs.size;
    result = vkBindBufferMemory(device_, slab->buffer, slab->memory, 0);
    if (result != VK_SUCCESS) return fail("vkBindBufferMemory", result);

    VkBufferDeviceAddressInfo address{VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO};
    address.buffer = slab->buffer;
    slab->address = vkGetBufferDeviceAddress(device_, &address);
    slab->first = (~slab->address + 1) % RangeAllocator::kAlignment;
    CHECK(slab->first <= address_slack_);
    if (host_visible) {
        void* mapped = nullptr;
        result = vkMapMemory(device_, slab->memory, 0, VK_WHOLE_SIZE, 0, &mapped);
        if (result != VK_SUCCESS) return fail("vkMapMemory", result);
        slab->mapped = static_cast<std::byte*>(mapped);
    }
    slab->ranges = std::make_unique<RangeAllocator>(size - slab->first);
    return slab;
}

// A software device keeps its memory in one file without a name, and does not look whether that may grow: beyond the
// limit the first access ends the process. Under mutex_.
Status MemoryPool::check_file_size(uint64_t size) const {
    rlimit limit{};
    if (!memory_is_a_file_ || ::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return ok_status();
    uint64_t bytes = 0;
    for (const Kind& kind : kinds_) {
        for (const auto& slab : kind.slabs) bytes += slab->size;
    }
    if (bytes + size <= limit.rlim_cur) return ok_status();
    return make_error(ErrorCode::kOutOfMemory, format("{} bytes of a software device's memory, which counts as a file, "
                                                      "beside {} taken: beyond the process's limit of "
                                                      "file sizes, {} bytes (ulimit -f)",
                                                      size, bytes, uint64_t{limit.rlim_cur}));
}

void MemoryPool::free_slab(Slab& slab) {
    if (health_->lost()) return;
    if (pretended_bytes_ != 0) {
        if (slab.mapped != nullptr) ::munmap(slab.mapped, slab.size);
        return;
    }
    if (slab.buffer != VK_NULL_HANDLE) vkDestroyBuffer(device_, slab.buffer, nullptr);
    if (slab.memory != VK_NULL_HANDLE) vkFreeMemory(device_, slab.memory, nullptr);
}

uint64_t MemoryPool::free_in_heap(const Kind& kind) const {
    uint64_t taken = 0;
    for (const Kind& other : kinds_) {
        if (other.heap != kind.heap) continue;
        for (const auto& slab : other.slabs) taken += slab->size;
    }
    if (pretended_bytes_ != 0) return pretended_bytes_ > taken ? pretended_bytes_ - taken : 0;
    // Drivers that hand out pages at the first touch do not count what is reserved, so we do.
    VkPhysicalDeviceMemoryProperties memory;
    vkGetPhysicalDeviceMemoryProperties(physical_, &memory);
    const uint64_t heap = memory.memoryHeaps[kind.heap].size;
    const uint64_t ours = heap > taken ? heap - taken : 0;
    return std::min(ours, free_device_bytes(physical_, has_budget_, kind.heap));
}

Error MemoryPool::out_of_memory(uint64_t size_bytes, const char* name, const Kind& kind) const {
    return make_error(ErrorCode::kOutOfMemory,
                      format("not enough memory for buffer '{}': {} bytes asked for, {} bytes free", name, size_bytes,
                             free_in_heap(kind)));
}

uint64_t MemoryPool::device_local_free() const {
    std::lock_guard lock(mutex_);
    const Kind& kind = kinds_[static_cast<size_t>(MemoryKind::kDeviceLocal)];
    uint64_t holes = 0;
    for (const auto& slab : kind.slabs) holes += slab->size - slab->first - slab->ranges->used_bytes();
    return free_in_heap(kind) + holes;
}

uint64_t MemoryPool::slab_bytes() const {
    std::lock_guard lock(mutex_);
    uint64_t bytes = 0;
    for (const Kind& kind : kinds_) {
        for (const auto& slab : kind.slabs) bytes += slab->size;
    }
    return bytes;
}

}  // namespace lorad::gpu
