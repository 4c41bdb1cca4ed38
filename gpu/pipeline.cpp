#include "gpu/pipeline.h"

#include "gpu/device_impl.h"
#include "gpu/facts/workgroup_use.h"
#include "gpu/kept_kernels.h"
#include "gpu/kernel_modules.h"
#include "gpu/kernel_statistics.h"
#include "gpu/param_spirv.h"
#include "gpu/pipeline_impl.h"
#include "proto/base/format.h"
#include "proto/base/log.h"

namespace lorad::gpu {

KernelImpl::~KernelImpl() {
    if (health == nullptr || health->lost()) return;
    const bool is_kept = owner != nullptr && owner->kept != nullptr;
    if (pipeline != VK_NULL_HANDLE && !is_kept) vkDestroyPipeline(device, pipeline, nullptr);
    if (sliced_known && sliced_known->vk != VK_NULL_HANDLE && !is_kept)
        vkDestroyPipeline(device, sliced_known->vk, nullptr);
    if (function != VK_NULL_HANDLE) text->destroy_function(device, function, nullptr);
    if (text_module != VK_NULL_HANDLE) text->destroy_module(device, text_module, nullptr);
}

void TextKernelFunctions::load(VkDevice device) {
    const auto find = [&](const char* name, auto& function) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(vkGetDeviceProcAddr(device, name));
    };
    find("vkCreateCuModuleNVX", create_module);
    find("vkCreateCuFunctionNVX", create_function);
    find("vkDestroyCuModuleNVX", destroy_module);
    find("vkDestroyCuFunctionNVX", destroy_function);
    find("vkCmdCuLaunchKernelNVX", launch);
}

namespace {

Result<Kernel> create_from_text(Device& device, const KernelOptions& options) {
    DeviceImpl& impl = device.impl();
    if (!impl.text_kernels.all()) {
        return make_error(ErrorCode::kInternal, format("kernel '{}' is a program of its own, which {} does not take",
                                                       options.module, device.capabilities().name));
    }
    auto kernel = std::make_unique<KernelImpl>();
    kernel->device = impl.vk;
    kernel->health = &impl.health;
    kernel->text = &impl.text_kernels;
    kernel->threads = options.threads;
    VkCuModuleCreateInfoNVX module{VK_STRUCTURE_TYPE_CU_MODULE_CREATE_INFO_NVX};
    module.dataSize = options.text.size() + 1;  // with the zero behind it
    module.pData = options.text.c_str();
    if (const VkResult result = impl.text_kernels.create_module(impl.vk, &module, nullptr, &kernel->text_module);
        result != VK_SUCCESS)
        return vk_error("vkCreateCuModuleNVX", result);
    VkCuFunctionCreateInfoNVX function{VK_STRUCTURE_TYPE_CU_FUNCTION_CREATE_INFO_NVX};
    function.module = kernel->text_module;
    function.pName = "matmul";
    if (const VkResult result = impl.text_kernels.create_function(impl.vk, &function, nullptr, &kernel->function);
        result != VK_SUCCESS)
        return vk_error("vkCreateCuFunctionNVX", result);
    return Kernel(std::move(kernel));
}

}  // namespace

Kernel::Kernel(std::unique_ptr<KernelImpl> impl) : impl_(std::move(impl)) {}
Kernel::~Kernel() = default;
Kernel::Kernel(Kernel&&) noexcept = default;
Kernel& Kernel::operator=(Kernel&&) noexcept = default;

const KernelStatistics& Kernel::statistics() const { return impl_->statistics; }
KernelUse Kernel::use() const {
    std::lock_guard lock(impl_->use_mutex);
    return impl_->use;
}

namespace {

Result<VkPipeline> make_new_pipeline(DeviceImpl& impl, const KernelOptions& options, bool in_buffer,
                                     VkPipelineCreateFlags flags) {
    const std::span<const uint32_t> words = kernel_spirv(options.module);
    const std::vector<uint32_t> changed = in_buffer ? with_params_in_buffer(words) : std::vector<uint32_t>();
    const std::span<const uint32_t> code = in_buffer ? std::span(changed) : words;
    VkShaderModuleCreateInfo module_info{VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO};
    module_info.codeSize = code.size_bytes();
    module_info.pCode = code.data();
    VkShaderModule module = VK_NULL_HANDLE;
    VK_TRY(vkCreateShaderModule(impl.vk, &module_info, nullptr, &module));

    std::vector<VkSpecializationMapEntry> entries;
    for (uint32_t i = 0; i < options.constants.size(); ++i) entries.push_back({i, i * 4, 4});
    VkSpecializationInfo constants{};
    constants.mapEntryCount = static_cast<uint32_t>(entries.size());
    constants.pMapEntries = entries.data();
    constants.dataSize = options.constants.size() * 4;
    constants.pData = options.constants.data();

    VkPipelineShaderStageRequiredSubgroupSizeCreateInfo required{
        VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO};
    required.requiredSubgroupSize = options.required_subgroup_size;
    VkComputePipelineCreateInfo info{VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
    info.flags = flags;
    info.layout = in_buffer ? impl.buffer_layout : impl.push_layout;
    info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
    info.stage.pNext = options.required_subgroup_size != 0 ? &required : nullptr;
    info.stage.flags = options.require_full_subgroups ? VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT : 0;
    info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
    info.stage.module = module;
    info.stage.pName = "main";
    info.stage.pSpecializationInfo = &constants;

    VkPipeline pipeline = VK_NULL_HANDLE;
    const VkResult result = vkCreateComputePipelines(impl.vk, impl.pipeline_cache, 1, &info, nullptr, &pipeline);
    vkDestroyShaderModule(impl.vk, module, nullptr);
    if (result == VK_SUCCESS) return pipeline;
    Error error = vk_error("vkCreateComputePipelines", result);
    error.message += format(" for kernel '{}'", options.module);
    return error;
}

// With keep_kernels() the one that is there already. Several may be made at once.
Result<VkPipeline> make_pipeline(DeviceImpl& impl, const KernelOptions& options, bool in_buffer,
                                 VkPipelineCreateFlags flags) {
    if (!impl.kept) return make_new_pipeline(impl, options, in_buffer, flags);
    const std::string key = format("{} [{}] {} {} {} {}", options.module, fmt::join(options.constants, " "),
                                   options.required_subgroup_size, options.require_full_subgroups, in_buffer, flags);
    {
        const std::lock_guard lock(impl.kept->mutex);
        if (const auto found = impl.kept->by_key.find(key); found != impl.kept->by_key.end()) return found->second;
    }
    TRY_ASSIGN(const VkPipeline made, make_new_pipeline(impl, options, in_buffer, flags));
    const std::lock_guard lock(impl.kept->mutex);
    const auto [kept, is_new] = impl.kept->by_key.emplace(key, made);
    if (!is_new) vkDestroyPipeline(impl.vk, made, nullptr);  // another thread was sooner
    return kept->second;
}

// Of these kernels the number of workgroups along the first axis says only whether there is more than one row.
bool counts_rows_alone(std::string_view module) {
    return module == "attention" || module == "attention_kv8" || module == "attention_kv32" ||
           module == "attention_lanes";
}

}  // namespace

SlicedPipeline KernelImpl::sliced() const {
    if (function != VK_NULL_HANDLE) return {};
    const std::lock_guard lock(sliced_mutex);
    if (sliced_known) return *sliced_known;
    SlicedPipeline made;
    const WorkgroupUse workgroups = workgroup_use(kernel_spirv(module));
    made.all_axes = !workgroups.counts;
    if (!workgroups.has_atomics && (!workgroups.counts || counts_rows_alone(module))) {
        // Where it cannot be made, the dispatch stays whole.
        const Result<VkPipeline> for_slices =
            make_pipeline(*owner, options, params_in_buffer, VK_PIPELINE_CREATE_DISPATCH_BASE_BIT);
        if (for_slices.ok()) made.vk = for_slices.value();
    }
    return sliced_known.emplace(made);
}

Result<Kernel> Kernel::create(Device& device, const KernelOptions& options) {
    if (!options.text.empty()) return create_from_text(device, options);
    if (kernel_spirv(options.module).empty()) {
        return make_error(
            ErrorCode::kInternal,
            format("kernel '{}' is not in this build: its shader compiler could not compile it", options.module));
    }
    const DeviceCapabilities& caps = device.capabilities();
    const uint32_t subgroup = options.required_subgroup_size;
    if (subgroup != 0 && (subgroup < caps.subgroup_size_min || subgroup > caps.subgroup_size_max)) {
        return make_error(ErrorCode::kInternal,
                          format("kernel '{}' needs subgroups of {}, {} has {} to {}", options.module, subgroup,
                                 caps.name, caps.subgroup_size_min, caps.subgroup_size_max));
    }
    DeviceImpl& impl = device.impl();
    const bool in_buffer = impl.params && (options.params_in_buffer || impl.all_params_in_buffer);
    auto kernel = std::make_unique<KernelImpl>();
    kernel->device = impl.vk;
    kernel->health = &impl.health;
    kernel->layout = in_buffer ? impl.buffer_layout : impl.push_layout;
    kernel->params_in_buffer = in_buffer;
    kernel->owner = &impl;
    kernel->module = options.module;
    kernel->options = options;
    kernel->options.module = kernel->module;
    TRY_ASSIGN(kernel->pipeline,
               make_pipeline(impl, options, in_buffer,
                             impl.kernel_statistics ? VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR : 0));
    if (impl.kernel_statistics) {
        kernel->statistics = kernel_statistics(impl.vk, kernel->pipeline);
        if (!impl.compiles_only())
            log_info("kernel {} [{}]: {}", options.module, fmt::join(options.constants, " "),
                     kernel->statistics.text());
    }
    return Kernel(std::move(kernel));
}

void keep_kernels(Device& device) { device.impl().kept = std::make_unique<KeptPipelines>(); }

bool has_kernel_module(std::string_view module) { return !kernel_spirv(module).empty(); }

}  // namespace lorad::gpu
