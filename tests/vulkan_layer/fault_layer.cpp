// A Vulkan layer that makes calls fail on demand and counts what is alive. Explicit:
// VK_INSTANCE_LAYERS=VK_LAYER_LORAD_fault with VK_LAYER_PATH (or VK_ADD_LAYER_PATH) naming the folder of its manifest;
// LORAD_FAULT_CONTROL names the file of control.h's words.
// Without the file it only passes calls on. Covers what lorad calls, not all of Vulkan.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

#include "tests/vulkan_layer/command_list.h"
#include "tests/vulkan_layer/control.h"
#include "tests/vulkan_layer/tables.h"

namespace lorad::testing::fault {
namespace {

constexpr const char* kLayerName = "VK_LAYER_LORAD_fault";

// ------------------------------------------------------------------------------------------------------------ control

std::atomic<uint64_t>* map_words() {
    static std::atomic<uint64_t> none[kWords];
    const char* path = std::getenv("LORAD_FAULT_CONTROL");
    const int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return none;
    struct stat status{};
    void* mapped = MAP_FAILED;
    if (fstat(file, &status) == 0 && status.st_size >= off_t(kWords * sizeof(uint64_t)))
        mapped = mmap(nullptr, kWords * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return mapped == MAP_FAILED ? none : static_cast<std::atomic<uint64_t>*>(mapped);
}

std::atomic<uint64_t>& word(size_t index) {
    static std::atomic<uint64_t>* const words = map_words();
    return words[index];
}

void note_fault(VkResult result) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    uint64_t never = 0;
    word(kInjectedAt).compare_exchange_strong(never, uint64_t(std::chrono::nanoseconds(now).count()));
    word(kInjected).fetch_add(1);
    if (result == VK_ERROR_DEVICE_LOST) word(kLost) = 1;
}

uint64_t count(Call call) { return word(size_t{kNumberOf} + call).fetch_add(1) + 1; }

bool is_due(Call call, uint64_t number) {
    const uint64_t first = word(size_t{kFirstFailing} + call), n = word(size_t{kHowMany} + call);
    return first != 0 && number >= first && (n == 0 || number < first + n);
}

// What the call is to give instead of being made; VK_SUCCESS: make it.
VkResult fault_of(Call call) {
    const bool due = is_due(call, count(call));
    // A lost device gives it to everything that may: what uses queues, and what makes objects of memory.
    if (!due)
        return word(kLost) != 0 && (call == kSubmit || call == kWait || call == kCounter) ? VK_ERROR_DEVICE_LOST
                                                                                          : VK_SUCCESS;
    const auto result = static_cast<VkResult>(static_cast<int64_t>(word(size_t{kResult} + call).load()));
    note_fault(result);
    return result;
}

#define FAULT(call)                                          \
    do {                                                     \
        const VkResult fault_result = fault_of(call);        \
        if (fault_result != VK_SUCCESS) return fault_result; \
    } while (false)

// -------------------------------------------------------------------------------------------------------------- tables

std::shared_mutex g_mutex;  // guards the maps
std::map<void*, InstanceTable> g_instances;
std::map<void*, DeviceTable> g_devices;
std::unordered_map<VkDeviceMemory, uint64_t> g_memory;  // bytes of each
std::unordered_map<VkCommandBuffer, CommandList> g_lists;
std::unordered_map<VkQueue, VkCommandBuffer> g_held_back;  // see QueueSubmit2

void* key_of(const void* handle) { return *static_cast<void* const*>(handle); }

template <typename Map>
auto& found(Map& map, const void* handle) {
    std::shared_lock lock(g_mutex);
    return map.at(key_of(handle));
}

const DeviceTable& device_of(const void* handle) { return found(g_devices, handle); }

// A recording belongs to one thread; only finding it takes the lock.
CommandList& list_of(VkCommandBuffer command) {
    {
        std::shared_lock lock(g_mutex);
        const auto list = g_lists.find(command);
        if (list != g_lists.end()) return list->second;
    }
    std::unique_lock lock(g_mutex);
    return g_lists[command];
}

// ----------------------------------------------------------------------------------------------------- queues and
// waits

bool is_left_out(uint64_t barrier) { return is_due(kBarrier, barrier); }

void record(VkCommandBuffer command, CommandList& list) {
    const CommandList::Recorded recorded = list.record(command, device_of(command), is_left_out);
    word(kReordered).fetch_add(recorded.n_reordered);
    for (uint64_t i = 0; i < recorded.n_left_out; ++i) note_fault(VK_SUCCESS);
}

// Records anew what was recorded while another barrier was to be left out, which is to change only while nothing runs.
VkResult bring_up_to_date(VkCommandBuffer command) {
    CommandList& list = list_of(command);
    if (list.is_as_recorded(is_left_out)) return VK_SUCCESS;
    VkCommandBufferBeginInfo info{};
    info.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
    info.flags = list.usage();
    const DeviceTable& table = device_of(command);
    if (const VkResult result = table.BeginCommandBuffer(command, &info); result != VK_SUCCESS) return result;
    record(command, list);
    return table.EndCommandBuffer(command);
}

// Without the barrier at its end a recording may run after the one behind it. The last one of a submission comes behind
// the first one of the next: so late that the host, which that barrier is for as well, sees nothing of what it writes.
VkResult put_open_ends_later(VkQueue queue, std::vector<VkCommandBufferSubmitInfo>& commands) {
    VkCommandBufferSubmitInfo late{VK_STRUCTURE_TYPE_COMMAND_BUFFER_SUBMIT_INFO, nullptr, VK_NULL_HANDLE, 0};
    {
        std::unique_lock lock(g_mutex);
        std::swap(late.commandBuffer, g_held_back[queue]);
    }
    std::vector<VkCommandBufferSubmitInfo> all = commands;
    if (late.commandBuffer != VK_NULL_HANDLE) all.push_back(late);
    for (const VkCommandBufferSubmitInfo& command : all) {
        if (const VkResult result = bring_up_to_date(command.commandBuffer); result != VK_SUCCESS) return result;
    }
    const auto ends_open = [](const VkCommandBufferSubmitInfo& command) {
        return list_of(command.commandBuffer).ends_open();
    };
    if (!commands.empty() && ends_open(commands.back())) {
        std::unique_lock lock(g_mutex);
        g_held_back[queue] = commands.back().commandBuffer;
        commands.pop_back();
        word(kReordered).fetch_add(1);
    }
    for (size_t i = 0; i + 1 < commands.size(); ++i) {
        if (!ends_open(commands[i])) continue;
        std::swap(commands[i], commands[i + 1]);
        word(kReordered).fetch_add(1);
        ++i;
    }
    if (late.commandBuffer != VK_NULL_HANDLE) commands.insert(commands.begin() + (commands.empty() ? 0 : 1), late);
    return VK_SUCCESS;
}

VKAPI_ATTR VkResult VKAPI_CALL QueueSubmit2(VkQueue queue, uint32_t n, const VkSubmitInfo2* infos, VkFence fence) {
    FAULT(kSubmit);
    if (word(kOrder) == kAsRecorded) return device_of(queue).QueueSubmit2(queue, n, infos, fence);
    std::vector<VkSubmitInfo2> submits(infos, infos + n);
    std::vector<std::vector<VkCommandBufferSubmitInfo>> commands(n);
    for (uint32_t i = 0; i < n; ++i) {
        commands[i].assign(infos[i].pCommandBufferInfos,
                           infos[i].pCommandBufferInfos + infos[i].commandBufferInfoCount);
        if (const VkResult result = put_open_ends_later(queue, commands[i]); result != VK_SUCCESS) return result;
        submits[i].commandBufferInfoCount = static_cast<uint32_t>(commands[i].size());
        submits[i].pCommandBufferInfos = commands[i].data();
    }
    return device_of(queue).QueueSubmit2(queue, n, submits.data(), fence);
}

VKAPI_ATTR VkResult VKAPI_CALL WaitSemaphores(VkDevice device, const VkSemaphoreWaitInfo* info, uint64_t timeout) {
    const VkResult fault = fault_of(kWait);
    // what waits anew does not spin
    if (fault == VK_TIMEOUT) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (fault != VK_SUCCESS) return fault;
    const auto begin = std::chrono::steady_clock::now();
    while (word(kHold) != 0) {
        const auto passed = std::chrono::steady_clock::now() - begin;
        if (uint64_t(std::chrono::nanoseconds(passed).count()) >= timeout) return VK_TIMEOUT;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return device_of(device).WaitSemaphores(device, info, timeout);
}

VKAPI_ATTR VkResult VKAPI_CALL GetSemaphoreCounterValue(VkDevice device, VkSemaphore semaphore, uint64_t* value) {
    static std::mutex mutex;
    static std::map<VkSemaphore, uint64_t> seen;  // what a counter says while it is held
    FAULT(kCounter);
    const VkResult result = device_of(device).GetSemaphoreCounterValue(device, semaphore, value);
    std::lock_guard lock(mutex);
    if (word(kHold) != 0)
        *value = std::min(*value, seen[semaphore]);
    else
        seen[semaphore] = *value;
    return result;
}

// --------------------------------------------------------------------------------------------------- memory and
// objects

VKAPI_ATTR VkResult VKAPI_CALL AllocateMemory(VkDevice device, const VkMemoryAllocateInfo* info,
                                              const VkAllocationCallbacks* callbacks, VkDeviceMemory* memory) {
    FAULT(kAllocate);
    const VkResult result = device_of(device).AllocateMemory(device, info, callbacks, memory);
    if (result == VK_SUCCESS) {
        std::unique_lock lock(g_mutex);
        g_memory[*memory] = info->allocationSize;
        word(kLiveAllocations).fetch_add(1);
        word(kLiveBytes).fetch_add(info->allocationSize);
    }
    return result;
}

VKAPI_ATTR void VKAPI_CALL FreeMemory(VkDevice device, VkDeviceMemory memory, const VkAllocationCallbacks* callbacks) {
    if (memory != VK_NULL_HANDLE) {
        std::unique_lock lock(g_mutex);
        word(kLiveAllocations).fetch_sub(1);
        word(kLiveBytes).fetch_sub(g_memory[memory]);
        g_memory.erase(memory);
    }
    device_of(device).FreeMemory(device, memory, callbacks);
}

// A pair of calls that make and end one object.
#define OBJECT(Name, Info)                                                                                  \
    VKAPI_ATTR VkResult VKAPI_CALL Create##Name(VkDevice device, const Info* info,                          \
                                                const VkAllocationCallbacks* callbacks, Vk##Name* object) { \
        FAULT(kCreate);                                                                                     \
        const VkResult result = device_of(device).Create##Name(device, info, callbacks, object);            \
        if (result == VK_SUCCESS) word(kLiveObjects).fetch_add(1);                                          \
        return result;                                                                                      \
    }                                                                                                       \
    VKAPI_ATTR void VKAPI_CALL Destroy##Name(VkDevice device, Vk##Name object,                              \
                                             const VkAllocationCallbacks* callbacks) {                      \
        if (object != VK_NULL_HANDLE) word(kLiveObjects).fetch_sub(1);                                      \
        device_of(device).Destroy##Name(device, object, callbacks);                                         \
    }
OBJECT(Buffer, VkBufferCreateInfo)
OBJECT(Semaphore, VkSemaphoreCreateInfo)
OBJECT(ShaderModule, VkShaderModuleCreateInfo)
OBJECT(QueryPool, VkQueryPoolCreateInfo)
OBJECT(PipelineLayout, VkPipelineLayoutCreateInfo)
OBJECT(PipelineCache, VkPipelineCacheCreateInfo)

VKAPI_ATTR VkResult VKAPI_CALL CreateComputePipelines(VkDevice device, VkPipelineCache cache, uint32_t n,
                                                      const VkComputePipelineCreateInfo* infos,
                                                      const VkAllocationCallbacks* callbacks, VkPipeline* pipelines) {
    const VkResult fault = fault_of(kCreate);
    if (fault != VK_SUCCESS) {
        std::fill_n(pipelines, n, VkPipeline(VK_NULL_HANDLE));
        return fault;
    }
    const VkResult result = device_of(device).CreateComputePipelines(device, cache, n, infos, callbacks, pipelines);
    for (uint32_t i = 0; i < n; ++i) {
        if (pipelines[i] != VK_NULL_HANDLE) word(kLiveObjects).fetch_add(1);
    }
    return result;
}

VKAPI_ATTR void VKAPI_CALL DestroyPipeline(VkDevice device, VkPipeline pipeline,
                                           const VkAllocationCallbacks* callbacks) {
    if (pipeline != VK_NULL_HANDLE) word(kLiveObjects).fetch_sub(1);
    device_of(device).DestroyPipeline(device, pipeline, callbacks);
}

// Of buffers that may be recorded anew one by one.
VKAPI_ATTR VkResult VKAPI_CALL CreateCommandPool(VkDevice device, const VkCommandPoolCreateInfo* info,
                                                 const VkAllocationCallbacks* callbacks, VkCommandPool* pool) {
    FAULT(kCreate);
    VkCommandPoolCreateInfo with_reset = *info;
    with_reset.flags |= VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
    const VkResult result = device_of(device).CreateCommandPool(device, &with_reset, callbacks, pool);
    if (result == VK_SUCCESS) word(kLiveObjects).fetch_add(1);
    return result;
}

VKAPI_ATTR void VKAPI_CALL DestroyCommandPool(VkDevice device, VkCommandPool pool,
                                              const VkAllocationCallbacks* callbacks) {
    if (pool != VK_NULL_HANDLE) {
        word(kLiveObjects).fetch_sub(1);
        std::unique_lock lock(g_mutex);
        std::erase_if(g_held_back, [&](const auto& held) {
            return held.second == VK_NULL_HANDLE || g_lists[held.second].pool() == pool;
        });
        std::erase_if(g_lists, [&](const auto& list) { return list.second.pool() == pool; });
    }
    device_of(device).DestroyCommandPool(device, pool, callbacks);
}

VKAPI_ATTR VkResult VKAPI_CALL AllocateCommandBuffers(VkDevice device, const VkCommandBufferAllocateInfo* info,
                                                      VkCommandBuffer* commands) {
    FAULT(kCreate);
    const VkResult result = device_of(device).AllocateCommandBuffers(device, info, commands);
    if (result != VK_SUCCESS) return result;
    for (uint32_t i = 0; i < info->commandBufferCount; ++i) list_of(commands[i]).set_pool(info->commandPool);
    return result;
}

VKAPI_ATTR VkResult VKAPI_CALL MapMemory(VkDevice device, VkDeviceMemory memory, VkDeviceSize offset, VkDeviceSize size,
                                         VkMemoryMapFlags flags, void** data) {
    FAULT(kCreate);
    return device_of(device).MapMemory(device, memory, offset, size, flags, data);
}

VKAPI_ATTR VkResult VKAPI_CALL BindBufferMemory(VkDevice device, VkBuffer buffer, VkDeviceMemory memory,
                                                VkDeviceSize offset) {
    FAULT(kCreate);
    return device_of(device).BindBufferMemory(device, buffer, memory, offset);
}

// ------------------------------------------------------------------------------------------------------------
// recording

VKAPI_ATTR VkResult VKAPI_CALL BeginCommandBuffer(VkCommandBuffer command, const VkCommandBufferBeginInfo* info) {
    FAULT(kRecord);
    list_of(command).begin(static_cast<Order>(word(kOrder).load()), info->flags);
    return device_of(command).BeginCommandBuffer(command, info);
}

VKAPI_ATTR VkResult VKAPI_CALL EndCommandBuffer(VkCommandBuffer command) {
    FAULT(kRecord);
    CommandList& list = list_of(command);
    if (list.keeps()) record(command, list);
    return device_of(command).EndCommandBuffer(command);
}

VKAPI_ATTR VkResult VKAPI_CALL ResetCommandPool(VkDevice device, VkCommandPool pool, VkCommandPoolResetFlags flags) {
    FAULT(kRecord);
    return device_of(device).ResetCommandPool(device, pool, flags);
}

VKAPI_ATTR void VKAPI_CALL CmdPipelineBarrier2(VkCommandBuffer command, const VkDependencyInfo* info) {
    const uint64_t number = count(kBarrier);
    if (CommandList& list = list_of(command); list.keeps()) {
        list.keep_barrier(number, *info);
        return;
    }
    if (!is_due(kBarrier, number)) return device_of(command).CmdPipelineBarrier2(command, info);
    note_fault(VK_SUCCESS);
}

VKAPI_ATTR void VKAPI_CALL CmdBindPipeline(VkCommandBuffer command, VkPipelineBindPoint point, VkPipeline pipeline) {
    if (CommandList& list = list_of(command); list.keeps()) return list.bind(point, pipeline);
    device_of(command).CmdBindPipeline(command, point, pipeline);
}

VKAPI_ATTR void VKAPI_CALL CmdPushConstants(VkCommandBuffer command, VkPipelineLayout layout, VkShaderStageFlags stages,
                                            uint32_t offset, uint32_t size, const void* values) {
    if (CommandList& list = list_of(command); list.keeps()) return list.push(layout, stages, offset, size, values);
    device_of(command).CmdPushConstants(command, layout, stages, offset, size, values);
}

#define WORK(Name, Parameters, Arguments)                                                             \
    VKAPI_ATTR void VKAPI_CALL Cmd##Name Parameters {                                                 \
        const auto work = [=](VkCommandBuffer to, const DeviceTable& by) { by.Cmd##Name Arguments; }; \
        if (CommandList& list = list_of(command); list.keeps()) return list.keep(work);               \
        work(command, device_of(command));                                                            \
    }
WORK(Dispatch, (VkCommandBuffer command, uint32_t x, uint32_t y, uint32_t z), (to, x, y, z))
WORK(DispatchIndirect, (VkCommandBuffer command, VkBuffer buffer, VkDeviceSize offset), (to, buffer, offset))
WORK(FillBuffer, (VkCommandBuffer command, VkBuffer buffer, VkDeviceSize offset, VkDeviceSize size, uint32_t data),
     (to, buffer, offset, size, data))

VKAPI_ATTR void VKAPI_CALL CmdCopyBuffer(VkCommandBuffer command, VkBuffer from, VkBuffer to, uint32_t n,
                                         const VkBufferCopy* regions) {
    CommandList& list = list_of(command);
    if (!list.keeps()) return device_of(command).CmdCopyBuffer(command, from, to, n, regions);
    list.keep([from, to, kept = std::vector<VkBufferCopy>(regions, regions + n)](VkCommandBuffer into,
                                                                                 const DeviceTable& by) {
        by.CmdCopyBuffer(into, from, to, uint32_t(kept.size()), kept.data());
    });
}

// --------------------------------------------------------------------------------------------------- creation and
// lookup

template <typename Info>
Info* link_info(const void* chain, VkStructureType type) {
    for (auto* at = static_cast<const VkBaseInStructure*>(chain); at != nullptr; at = at->pNext) {
        auto* info = reinterpret_cast<const Info*>(at);
        if (at->sType == type && info->function == VK_LAYER_LINK_INFO) return const_cast<Info*>(info);
    }
    return nullptr;
}

VKAPI_ATTR VkResult VKAPI_CALL CreateInstance(const VkInstanceCreateInfo* info, const VkAllocationCallbacks* callbacks,
                                              VkInstance* instance) {
    auto* link = link_info<VkLayerInstanceCreateInfo>(info->pNext, VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO);
    if (link == nullptr) return VK_ERROR_INITIALIZATION_FAILED;
    const auto next = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    const auto create = reinterpret_cast<PFN_vkCreateInstance>(next(VK_NULL_HANDLE, "vkCreateInstance"));
    const VkResult result = create(info, callbacks, instance);
    if (result != VK_SUCCESS) return result;
    std::unique_lock lock(g_mutex);
    g_instances[key_of(*instance)] = InstanceTable(*instance, next);
    return VK_SUCCESS;
}

VKAPI_ATTR void VKAPI_CALL DestroyInstance(VkInstance instance, const VkAllocationCallbacks* callbacks) {
    void* const key = key_of(instance);
    found(g_instances, instance).DestroyInstance(instance, callbacks);
    std::unique_lock lock(g_mutex);
    g_instances.erase(key);
}

VKAPI_ATTR VkResult VKAPI_CALL CreateDevice(VkPhysicalDevice physical, const VkDeviceCreateInfo* info,
                                            const VkAllocationCallbacks* callbacks, VkDevice* device) {
    FAULT(kCreate);
    auto* link = link_info<VkLayerDeviceCreateInfo>(info->pNext, VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO);
    if (link == nullptr) return VK_ERROR_INITIALIZATION_FAILED;
    const auto next_instance = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    const auto next = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    const VkInstance instance = found(g_instances, physical).instance;
    const auto create = reinterpret_cast<PFN_vkCreateDevice>(next_instance(instance, "vkCreateDevice"));
    const VkResult result = create(physical, info, callbacks, device);
    if (result != VK_SUCCESS) return result;
    word(kLiveObjects).fetch_add(1);
    std::unique_lock lock(g_mutex);
    g_devices[key_of(*device)] = DeviceTable(*device, next);
    return VK_SUCCESS;
}

VKAPI_ATTR void VKAPI_CALL DestroyDevice(VkDevice device, const VkAllocationCallbacks* callbacks) {
    if (device == VK_NULL_HANDLE) return;
    void* const key = key_of(device);
    device_of(device).DestroyDevice(device, callbacks);
    word(kLiveObjects).fetch_sub(1);
    std::unique_lock lock(g_mutex);
    g_devices.erase(key);
}

template <typename Properties>
VkResult describe(uint32_t* n, Properties* properties) {
    if (properties == nullptr) {
        *n = 1;
        return VK_SUCCESS;
    }
    if (*n == 0) return VK_INCOMPLETE;
    *n = 1;
    properties[0] = {};
    std::strcpy(properties[0].layerName, kLayerName);
    std::strcpy(properties[0].description, "makes calls fail on demand");
    properties[0].specVersion = VK_API_VERSION_1_3;
    properties[0].implementationVersion = 1;
    return VK_SUCCESS;
}

VKAPI_ATTR VkResult VKAPI_CALL EnumerateInstanceLayerProperties(uint32_t* n, VkLayerProperties* properties) {
    return describe(n, properties);
}
VKAPI_ATTR VkResult VKAPI_CALL EnumerateDeviceLayerProperties(VkPhysicalDevice, uint32_t* n,
                                                              VkLayerProperties* properties) {
    return describe(n, properties);
}

PFN_vkVoidFunction own_function(std::string_view name);

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL GetDeviceProcAddr(VkDevice device, const char* name) {
    if (const auto own = own_function(name)) return own;
    return device_of(device).GetDeviceProcAddr(device, name);
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL GetInstanceProcAddr(VkInstance instance, const char* name) {
    if (const auto own = own_function(name)) return own;
    if (instance == VK_NULL_HANDLE) return nullptr;
    const InstanceTable& table = found(g_instances, instance);
    return table.GetInstanceProcAddr(instance, name);
}

PFN_vkVoidFunction own_function(std::string_view name) {
#define OWN(Name) \
    if (name == "vk" #Name) return reinterpret_cast<PFN_vkVoidFunction>(Name);
#define OWN_OBJECT(Name) OWN(Create##Name) OWN(Destroy##Name)
    OWN(GetInstanceProcAddr)
    OWN(GetDeviceProcAddr)
    OWN(CreateInstance) OWN(DestroyInstance) OWN(CreateDevice) OWN(DestroyDevice) OWN(EnumerateInstanceLayerProperties)
        OWN(EnumerateDeviceLayerProperties) OWN(QueueSubmit2) OWN(WaitSemaphores) OWN(GetSemaphoreCounterValue)
            OWN(AllocateMemory) OWN(FreeMemory) OWN_OBJECT(Buffer) OWN_OBJECT(CommandPool) OWN_OBJECT(Semaphore)
                OWN_OBJECT(ShaderModule) OWN_OBJECT(QueryPool) OWN_OBJECT(PipelineLayout) OWN_OBJECT(PipelineCache)
                    OWN(CreateComputePipelines) OWN(DestroyPipeline) OWN(AllocateCommandBuffers) OWN(MapMemory)
                        OWN(BindBufferMemory) OWN(BeginCommandBuffer) OWN(EndCommandBuffer) OWN(ResetCommandPool)
                            OWN(CmdPipelineBarrier2) OWN(CmdBindPipeline) OWN(CmdPushConstants) OWN(CmdDispatch)
                                OWN(CmdDispatchIndirect) OWN(CmdFillBuffer) OWN(CmdCopyBuffer) return nullptr;
}

}  // namespace
}  // namespace lorad::testing::fault

extern "C" __attribute__((visibility("default"))) VkResult
vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface* interface) {
    using namespace lorad::testing::fault;
    if (interface->loaderLayerInterfaceVersion < 2) return VK_ERROR_INITIALIZATION_FAILED;
    interface->loaderLayerInterfaceVersion = 2;
    interface->pfnGetInstanceProcAddr = GetInstanceProcAddr;
    interface->pfnGetDeviceProcAddr = GetDeviceProcAddr;
    interface->pfnGetPhysicalDeviceProcAddr = nullptr;
    return VK_SUCCESS;
}
