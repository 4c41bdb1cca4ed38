#include "gpu/param_memory.h"

#include <algorithm>

#include "proto/base/check.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kSlabBytes = 4 << 20;
constexpr uint32_t kAlignmentMin = 64;
constexpr VkMemoryPropertyFlags kProperties =
    VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;

VkBufferCreateInfo buffer_info() {
    VkBufferCreateInfo info{VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
    info.size = kSlabBytes;
    info.usage = VK_BUFFER_USAGE_UNIFORM_BUFFER_BIT;
    return info;
}

}  // namespace

Status ParamMemory::init(const PhysicalDevice& physical, VkDevice device, const DeviceHealth& health) {
    device_ = device;
    health_ = &health;
    alignment_ =
        std::max(kAlignmentMin, static_cast<uint32_t>(physical.properties.limits.minUniformBufferOffsetAlignment));
    const VkBufferCreateInfo info = buffer_info();
    const VkDeviceBufferMemoryRequirements query{VK_STRUCTURE_TYPE_DEVICE_BUFFER_MEMORY_REQUIREMENTS, nullptr, &info};
    VkMemoryRequirements2 needs{VK_STRUCTURE_TYPE_MEMORY_REQUIREMENTS_2};
    vkGetDeviceBufferMemoryRequirements(device, &query, &needs);
    VkPhysicalDeviceMemoryProperties memory;
    vkGetPhysicalDeviceMemoryProperties(physical.vk, &memory);
    const auto serves = [&](uint32_t type) {
        return (needs.memoryRequirements.memoryTypeBits >> type & 1) != 0 &&
               (memory.memoryTypes[type].propertyFlags & kProperties) == kProperties;
    };
    while (memory_type_ < memory.memoryTypeCount && !serves(memory_type_)) ++memory_type_;
    if (memory_type_ == memory.memoryTypeCount) return ok_status();

    const VkDescriptorSetLayoutBinding binding{0, VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER_DYNAMIC, 1,
                                               VK_SHADER_STAGE_COMPUTE_BIT, nullptr};
    VkDescriptorSetLayoutCreateInfo layout{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO};
    layout.bindingCount = 1;
    layout.pBindings = &binding;
    VK_TRY(vkCreateDescriptorSetLayout(device, &layout, nullptr, &layout_));
    return ok_status();
}

ParamMemory::~ParamMemory() {
    if (device_ == VK_NULL_HANDLE || health_->lost()) return;
    CHECK(free_.size() == slabs_.size() * (kSlabBytes / kBlockBytes));  // a recording outlived its device
    for (const auto& slab : slabs_) destroy(*slab);
    if (layout_ != VK_NULL_HANDLE) vkDestroyDescriptorSetLayout(device_, layout_, nullptr);
}

void ParamMemory::destroy(const Slab& slab) const {
    if (slab.pool != VK_NULL_HANDLE) vkDestroyDescriptorPool(device_, slab.pool, nullptr);
    if (slab.buffer != VK_NULL_HANDLE) vkDestroyBuffer(device_, slab.buffer, nullptr);
    if (slab.memory != VK_NULL_HANDLE) vkFreeMemory(device_, slab.memory, nullptr);
}

Result<ParamMemory::Block> ParamMemory::take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) TRY(add_slab());
    const Block block = free_.back();
    free_.pop_back();
    return block;
}

void ParamMemory::give_back(const Block& block) {
    const std::lock_guard lock(mutex_);
    free_.push_back(block);
}

Status ParamMemory::add_slab() {
    auto slab = std::make_unique<Slab>();
    const auto make = [&]() -> Status {
        const VkBufferCreateInfo info = buffer_info();
        VK_TRY(vkCreateBuffer(device_, &info, nullptr, &slab->buffer));
        VkMemoryRequirements needs;
        vkGetBufferMemoryRequirements(device_, slab->buffer, &needs);
        VkMemoryAllocateInfo allocate{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
        allocate.allocationSize = needs.size;
        allocate.memoryTypeIndex = memory_type_;
        VK_TRY(vkAllocateMemory(device_, &allocate, nullptr, &slab->memory));
        VK_TRY(vkBindBufferMemory(device_, slab->buffer, slab->memory, 0));
        void* mapped = nullptr;
        VK_TRY(vkMapMemory(device_, slab->memory, 0, VK_WHOLE_SIZE, 0, &mapped));
        slab->mapped = static_cast<std::byte*>(mapped);
        const VkDescriptorPoolSize size{VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER_DYNAMIC, 1};
        VkDescriptorPoolCreateInfo pool{VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO};
        pool.maxSets = 1;
        pool.poolSizeCount = 1;
        pool.pPoolSizes = &size;
        VK_TRY(vkCreateDescriptorPool(device_, &pool, nullptr, &slab->pool));
        VkDescriptorSetAllocateInfo sets{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO};
        sets.descriptorPool = slab->pool;
        sets.descriptorSetCount = 1;
        sets.pSetLayouts = &layout_;
        VK_TRY(vkAllocateDescriptorSets(device_, &sets, &slab->set));
        return ok_status();
    };
    if (Status made = make(); !made.ok()) {
        destroy(*slab);
        return made;
    }
    const VkDescriptorBufferInfo range{slab->buffer, 0, kParamBytesMax};
    VkWriteDescriptorSet write{VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET};
    write.dstSet = slab->set;
    write.descriptorCount = 1;
    write.descriptorType = VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER_DYNAMIC;
    write.pBufferInfo = &range;
    vkUpdateDescriptorSets(device_, 1, &write, 0, nullptr);
    slabs_.push_back(std::move(slab));
    for (uint32_t begin = kSlabBytes; begin > 0; begin -= kBlockBytes)
        free_.push_back({slabs_.back().get(), begin - kBlockBytes});
    return ok_status();
}

}  // namespace lorad::gpu
