#include "gpu/device.h"

#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "gpu/device_features.h"
#include "gpu/device_impl.h"
#include "gpu/upload_impl.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/version.h"

namespace lorad::gpu {
namespace {

Status create_logical_device(DeviceImpl& impl, bool kernel_statistics) {
    const PhysicalDevice& physical = impl.physical;
    FeatureChain features(physical.extensions, kernel_statistics);
    vkGetPhysicalDeviceFeatures2(physical.vk, &features.core);
    features.keep_only_used();
    impl.kernel_statistics = features.executable_properties.pipelineExecutableInfo == VK_TRUE;
    std::vector<const char*> extensions = features.extensions;
    if (physical.has_memory_budget) extensions.push_back(VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
    if (physical.capabilities.warpgroup_matrices) extensions.push_back(VK_NVX_BINARY_IMPORT_EXTENSION_NAME);

    const float priorities[] = {1.0f, 0.5f};
    const bool second_compute_queue = !physical.has_transfer_family() && physical.n_compute_queues > 1;
    std::vector<VkDeviceQueueCreateInfo> queues;
    VkDeviceQueueCreateInfo queue{VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO};
    queue.queueFamilyIndex = physical.compute_family;
    queue.queueCount = second_compute_queue ? 2 : 1;
    queue.pQueuePriorities = priorities;
    queues.push_back(queue);
    if (physical.has_transfer_family()) {
        queue.queueFamilyIndex = physical.transfer_family;
        queue.queueCount = 1;
        queues.push_back(queue);
    }
    VkDeviceCreateInfo info{VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, &features.core};
    info.queueCreateInfoCount = static_cast<uint32_t>(queues.size());
    info.pQueueCreateInfos = queues.data();
    info.enabledExtensionCount = static_cast<uint32_t>(extensions.size());
    info.ppEnabledExtensionNames = extensions.data();
    VK_TRY(vkCreateDevice(physical.vk, &info, nullptr, &impl.vk));

    vkGetDeviceQueue(impl.vk, physical.compute_family, 0, &impl.compute.vk);
    impl.upload_queue = &impl.compute;
    if (physical.has_transfer_family() || second_compute_queue) {
        vkGetDeviceQueue(impl.vk, physical.transfer_family, second_compute_queue ? 1 : 0, &impl.second.vk);
        impl.upload_queue = &impl.second;
    }

    if (physical.capabilities.warpgroup_matrices) impl.text_kernels.load(impl.vk);

    const VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, kPushConstantBytes};
    VkPipelineLayoutCreateInfo push{VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO};
    push.pushConstantRangeCount = 1;
    push.pPushConstantRanges = &range;
    VK_TRY(vkCreatePipelineLayout(impl.vk, &push, nullptr, &impl.push_layout));
    if (!physical.params_in_buffer || impl.compiles_only()) return ok_status();
    impl.params.emplace();
    TRY(impl.params->init(physical, impl.vk, impl.health));
    if (!impl.params->is_there()) {
        impl.params.reset();
        return ok_status();
    }
    const VkDescriptorSetLayout set = impl.params->layout();
    VkPipelineLayoutCreateInfo buffer{VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO};
    buffer.setLayoutCount = 1;
    buffer.pSetLayouts = &set;
    VK_TRY(vkCreatePipelineLayout(impl.vk, &buffer, nullptr, &impl.buffer_layout));
    return ok_status();
}

void pretend_memory(PhysicalDevice& physical, uint64_t n_bytes) {
    constexpr uint64_t kEnough = uint64_t{1} << 40;
    DeviceCapabilities& capabilities = physical.capabilities;
    capabilities.compiles_only = true;
    capabilities.device_local_bytes = capabilities.device_local_free_bytes = n_bytes != 0 ? n_bytes : kEnough;
    physical.has_memory_budget = false;
}

constexpr const char* kRatesKey = "rates";

std::string hex(std::span<const uint8_t> bytes) {
    std::string text;
    for (const uint8_t byte : bytes) text += format("{:02x}", byte);
    return text;
}

std::filesystem::path cache_path_of(const DeviceOptions& options, const VkPhysicalDeviceProperties& properties) {
    if (!options.pipeline_cache.empty() || options.cache_folder.empty()) return options.pipeline_cache;
    return options.cache_folder / format("pipelines-{:04x}-{:04x}.bin", properties.vendorID, properties.deviceID);
}

DeviceSpeed speed_of(const PhysicalDevice& physical) {
    const DeviceCapabilities& capabilities = physical.capabilities;
    if (capabilities.is_cpu) return DeviceSpeed::kCpu;
    if (physical.properties.deviceType != VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU) return DeviceSpeed::kOther;
    return capabilities.coopmat_f16 ? DeviceSpeed::kMatrices : DeviceSpeed::kDiscrete;
}

std::unique_ptr<StartRecord> record_of(const PhysicalDevice& physical, const std::filesystem::path& cache_path,
                                       const DeviceOptions& options) {
    const VkPhysicalDeviceProperties& properties = physical.properties;
    const bool keeps = !cache_path.empty() && !options.compile_only;
    return std::make_unique<StartRecord>(
        keeps ? cache_path.string() + ".start" : std::string(),
        RecordOwner{format("{}, {}, {:04x}:{:04x} {:08x} {}", physical.capabilities.name, physical.capabilities.driver,
                           properties.vendorID, properties.deviceID, properties.driverVersion,
                           hex(properties.pipelineCacheUUID)),
                    build_id()});
}

void open_record(DeviceImpl& impl, const DeviceOptions& options) {
    impl.record = record_of(impl.physical, impl.cache_path, options);
    impl.repeats_tests = options.repeats_tests;
    impl.submission_max = options.submission_max;
    impl.rates = std::make_unique<WorkRates>(speed_of(impl.physical), options.slowness);
    if (const auto known = impl.record->find(kRatesKey)) impl.rates->take(*known);
}

// Keeps what a lost device may still use for the life of the process, where leak checkers see that it is meant.
void keep_for_ever(std::unique_ptr<Instance> instance) {
    static std::mutex mutex;
    static auto* const kept = new std::vector<std::unique_ptr<Instance>>;
    const std::lock_guard lock(mutex);
    kept->push_back(std::move(instance));
}

}  // namespace

DeviceImpl::DeviceImpl() = default;

DeviceImpl::~DeviceImpl() {
    // Nothing was submitted to a device that only compiles, and without hardware the call is a null one.
    if (vk != VK_NULL_HANDLE && !health.lost() && !compiles_only()) vkDeviceWaitIdle(vk);
    uploader_impl.reset();
    queue_impl.reset();
    memory.reset();
    if (health.lost()) {
        keep_for_ever(std::move(instance));
        return;
    }
    if (kept) {
        for (const auto& [key, pipeline] : kept->by_key) vkDestroyPipeline(vk, pipeline, nullptr);
    }
    if (pipeline_cache != VK_NULL_HANDLE) vkDestroyPipelineCache(vk, pipeline_cache, nullptr);
    for (const VkPipelineLayout layout : {push_layout, buffer_layout}) {
        if (layout != VK_NULL_HANDLE) vkDestroyPipelineLayout(vk, layout, nullptr);
    }
    params.reset();
    if (vk != VK_NULL_HANDLE) vkDestroyDevice(vk, nullptr);
}

Result<std::vector<DeviceReport>> list_devices(const DeviceOptions& options) {
    TRY_ASSIGN(auto instance, Instance::create(options.validation));
    TRY_ASSIGN(const auto devices, probe_physical_devices(instance->vk()));
    const std::vector<DeviceCandidate> candidates = candidates_of(devices, options.compile_only);
    const auto choice = choose_device(candidates, options.device_index);
    if (devices.empty()) return choice.error();
    std::vector<DeviceReport> reports;
    for (size_t i = 0; i < devices.size(); ++i) {
        DeviceReport report;
        report.capabilities = devices[i].capabilities;
        report.usable = candidates[i].rejection.empty();
        report.chosen = choice.ok() && choice.value() == i;
        report.reason = choice_reason(candidates, i, report.chosen, options.device_index);
        if (options.lists_records && report.usable)
            report.record = record_of(devices[i], cache_path_of(options, devices[i].properties), options);
        reports.push_back(std::move(report));
    }
    return reports;
}

Result<std::unique_ptr<Device>> Device::create(const DeviceOptions& options) {
    auto impl = std::make_unique<DeviceImpl>();
    TRY_ASSIGN(impl->instance, Instance::create(options.validation));
    TRY_ASSIGN(auto devices, probe_physical_devices(impl->instance->vk()));
    TRY_ASSIGN(const size_t index, choose_device(candidates_of(devices, options.compile_only), options.device_index));
    impl->physical = std::move(devices[index]);
    if (options.compile_only) pretend_memory(impl->physical, options.pretended_memory_bytes);
    impl->physical.capabilities.small_workgroups = impl->physical.capabilities.is_cpu && !options.gpu_workgroups;
    impl->cache_path = cache_path_of(options, impl->physical.properties);
    impl->all_params_in_buffer = options.params_in_buffer;
    impl->physical.params_in_buffer |= options.params_in_buffer;
    TRY(create_logical_device(*impl, options.kernel_statistics));
    impl->pipeline_cache =
        load_pipeline_cache(impl->vk, impl->physical.properties, impl->cache_path, impl->cache_digest);
    open_record(*impl, options);
    if (options.stages_uploads) impl->physical.capabilities.unified_memory = false;
    impl->memory = std::make_unique<MemoryPool>();
    TRY(impl->memory->init(impl->physical, impl->vk, impl->health));

    impl->uploader_impl = std::make_unique<UploaderImpl>(*impl);
    if (!options.compile_only) {
        TRY(impl->uploader_impl->init());
        impl->memory->on_release([uploads = impl->uploader_impl.get()](uint64_t value) { uploads->settle(value); });
    }
    impl->uploader.emplace(impl->uploader_impl.get());

    impl->queue_impl = std::make_unique<QueueImpl>();
    impl->queue_impl->queue = &impl->compute;
    impl->queue_impl->device = impl.get();
    impl->queue_impl->uploads = &impl->uploader_impl->timeline();
    if (impl->physical.capabilities.is_cpu) impl->queue_impl->patience = std::chrono::minutes(10);
    if (!options.compile_only)
        TRY(impl->queue_impl->timeline.init(impl->vk, impl->health, "compute queue"));
    else
        impl->queue_impl->refusal =
            format("{} was opened to compile kernels: nothing runs on it", impl->physical.capabilities.name);
    impl->queue.emplace(impl->queue_impl.get());

    log_debug("vulkan device={} driver={} api={}", impl->physical.capabilities.name, impl->physical.capabilities.driver,
              impl->physical.capabilities.api_version);
    return std::unique_ptr<Device>(new Device(std::move(impl)));
}

Device::Device(std::unique_ptr<DeviceImpl> impl) : impl_(std::move(impl)) {}
Device::~Device() = default;

const DeviceCapabilities& Device::capabilities() const { return impl_->physical.capabilities; }

Result<Buffer> Device::create_buffer(uint64_t size_bytes, MemoryKind kind, const char* name) {
    TRY_ASSIGN(auto buffer, impl_->memory->allocate(size_bytes, kind, name));
    return Buffer(std::move(buffer));
}

Queue& Device::compute_queue() { return *impl_->queue; }
Uploader& Device::uploader() { return *impl_->uploader; }

uint64_t Device::allocated_bytes() const { return impl_->memory->device_local_used(); }
uint64_t Device::free_bytes_estimate() const { return impl_->memory->device_local_free(); }
uint64_t Device::validation_message_count() const { return impl_->instance->validation_message_count(); }
uint64_t Device::reserved_bytes() const { return impl_->memory->slab_bytes(); }
bool Device::validation_active() const { return impl_->instance->validation_active(); }

void Device::wait_idle() {
    if (impl_->compiles_only()) return;
    std::scoped_lock lock(impl_->compute.mutex, impl_->second.mutex);
    if (!impl_->health.lost()) vkDeviceWaitIdle(impl_->vk);  // one that hangs never is
}

void Device::save_caches() const {
    if (impl_->cache_path.empty() || impl_->health.lost() || impl_->compiles_only()) return;
    const std::lock_guard lock(impl_->cache_mutex);
    write_pipeline_cache(impl_->vk, impl_->pipeline_cache, impl_->cache_path, impl_->cache_digest);
    impl_->record->put(kRatesKey, impl_->rates->text());
    impl_->record->save();
}

StartRecord& Device::start_record() const { return *impl_->record; }
bool Device::repeats_tests() const { return impl_->repeats_tests; }
std::chrono::microseconds Device::submission_max() const { return impl_->submission_max; }
uint64_t Device::n_submissions() const {
    return impl_->compiles_only() ? 0 : impl_->queue_impl->timeline.last_submitted();
}

}  // namespace lorad::gpu
