// The members of a Device. Internal to gpu/.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "gpu/device_health.h"
#include "gpu/facts/start_record.h"
#include "gpu/facts/work_rates.h"
#include "gpu/instance.h"
#include "gpu/memory_pool.h"
#include "gpu/param_memory.h"
#include "gpu/physical_device.h"
#include "gpu/queue.h"
#include "gpu/upload.h"
#include "gpu/vk.h"

namespace lorad::gpu {

// A VkQueue may be used by one thread at a time; compute and upload may share one.
struct SharedQueue {
    VkQueue vk = VK_NULL_HANDLE;
    std::mutex mutex;
};

// A semaphore whose value counts submissions. Its failures are the device's loss, but for submissions without memory
// for them:
// these were not made, and are tried a few times.
class Timeline {
  public:
    Status init(VkDevice device, DeviceHealth& health, const char* what);
    ~Timeline();

    Status wait(uint64_t value, std::chrono::milliseconds deadline);
    Result<uint64_t> completed();

    // Submits to `queue`, after `after` has reached after_value (nullptr: no wait), in parts: `ends` says behind how
    // many of the commands each of them ends. Each has a value of its own; returns that of the last.
    Result<uint64_t> submit(SharedQueue& queue, std::span<const VkCommandBuffer> commands,
                            std::span<const uint32_t> ends, Timeline* after, uint64_t after_value);
    uint64_t last_submitted() const { return last_submitted_.load(); }
    bool is_known_completed(uint64_t value) const { return value <= seen_completed_.load(); }
    Status status() const { return health_->status(); }

  private:
    void saw_completed(uint64_t value);

    VkDevice device_ = VK_NULL_HANDLE;
    DeviceHealth* health_ = nullptr;
    VkSemaphore semaphore_ = VK_NULL_HANDLE;
    const char* what_ = "";
    std::atomic<uint64_t> last_submitted_ = 0;
    std::atomic<uint64_t> seen_completed_ = 0;  // the largest value that was read or waited for
};

struct WorkTimers;

struct QueueImpl {
    SharedQueue* queue = nullptr;
    DeviceImpl* device = nullptr;
    std::mutex timers_mutex;
    std::vector<std::shared_ptr<WorkTimers>> timers;  // guarded by timers_mutex; of submissions that are not read yet
    Timeline timeline;
    Timeline* uploads = nullptr;
    std::chrono::milliseconds patience = std::chrono::minutes(1);  // of a wait without a deadline
    std::string refusal;  // of a device that only compiles: why nothing can be submitted

    void note_timers(const std::shared_ptr<WorkTimers>& of_recording, uint64_t value);
    void learn_up_to(uint64_t value);  // what is submitted up to it is done
};

// VK_NVX_binary_import. Null where the device lacks it.
struct TextKernelFunctions {
    PFN_vkCreateCuModuleNVX create_module = nullptr;
    PFN_vkCreateCuFunctionNVX create_function = nullptr;
    PFN_vkDestroyCuModuleNVX destroy_module = nullptr;
    PFN_vkDestroyCuFunctionNVX destroy_function = nullptr;
    PFN_vkCmdCuLaunchKernelNVX launch = nullptr;

    void load(VkDevice device);
    bool all() const {
        return create_module != nullptr && create_function != nullptr && destroy_module != nullptr &&
               destroy_function != nullptr && launch != nullptr;
    }
};

// The pipelines of keep_kernels(), by what they were made from.
struct KeptPipelines {
    std::mutex mutex;
    std::map<std::string, VkPipeline> by_key;  // guarded by mutex
};

struct DeviceImpl {
    std::unique_ptr<Instance> instance;
    PhysicalDevice physical;
    std::filesystem::path cache_path;
    std::mutex cache_mutex;    // guards the following
    std::string cache_digest;  // of what lies in cache_path; empty: nothing that is known
    std::unique_ptr<StartRecord> record;
    bool repeats_tests = false;
    std::chrono::microseconds submission_max{0};  // 0: no bound
    std::unique_ptr<WorkRates> rates;
    DeviceHealth health;
    VkDevice vk = VK_NULL_HANDLE;
    VkPipelineLayout push_layout = VK_NULL_HANDLE;    // of kernels: 128 bytes of push constants,
    VkPipelineLayout buffer_layout = VK_NULL_HANDLE;  // or set 0 of `params`
    VkPipelineCache pipeline_cache = VK_NULL_HANDLE;
    bool kernel_statistics = false;  // requested, and the driver has them
    TextKernelFunctions text_kernels;
    std::unique_ptr<KeptPipelines> kept;  // none: each kernel has pipelines of its own

    SharedQueue compute;
    SharedQueue second;  // only used where the upload queue is not the compute queue
    SharedQueue* upload_queue = nullptr;

    std::unique_ptr<MemoryPool> memory;
    std::optional<ParamMemory> params;  // none where push constants serve as well
    bool all_params_in_buffer = false;  // also of kernels that do not ask for it, for tests
    // If true, there are no command pools, timelines and memory.
    bool compiles_only() const { return physical.capabilities.compiles_only; }
    std::unique_ptr<QueueImpl> queue_impl;
    std::unique_ptr<UploaderImpl> uploader_impl;
    std::optional<Queue> queue;
    std::optional<Uploader> uploader;

    DeviceImpl();
    ~DeviceImpl();
};

inline constexpr uint32_t kPushConstantBytes = 128;
static_assert(kPushConstantBytes == ParamMemory::kParamBytesMax);

// gpu/pipeline_cache.cpp. A file of another device, driver or version of lorad, or one that is damaged, is ignored with
// a warning; so is a failure to write. `digest` becomes that of what the file holds: what is the same is not written
// again.
VkPipelineCache load_pipeline_cache(VkDevice device, const VkPhysicalDeviceProperties& properties,
                                    const std::filesystem::path& path, std::string& digest);
void write_pipeline_cache(VkDevice device, VkPipelineCache cache, const std::filesystem::path& path,
                          std::string& digest);

}  // namespace lorad::gpu
