#include "gpu/command.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "gpu/command_impl.h"
#include "gpu/pipeline.h"
#include "gpu/pipeline_impl.h"
#include "proto/base/rounding.h"

namespace lorad::gpu {
namespace {

constexpr VkPipelineStageFlags2 kCompute = VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT;
constexpr VkPipelineStageFlags2 kTransfer = VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT;
constexpr VkAccessFlags2 kShaderWrites = VK_ACCESS_2_SHADER_STORAGE_WRITE_BIT;
constexpr VkAccessFlags2 kShaderAccess = VK_ACCESS_2_SHADER_STORAGE_READ_BIT | VK_ACCESS_2_SHADER_STORAGE_WRITE_BIT;
constexpr VkAccessFlags2 kTransferAccess = VK_ACCESS_2_TRANSFER_READ_BIT | VK_ACCESS_2_TRANSFER_WRITE_BIT;

void record_barrier(VkCommandBuffer command, VkPipelineStageFlags2 from, VkAccessFlags2 writes,
                    VkPipelineStageFlags2 to, VkAccessFlags2 accesses) {
    VkMemoryBarrier2 memory{VK_STRUCTURE_TYPE_MEMORY_BARRIER_2};
    memory.srcStageMask = from;
    memory.srcAccessMask = writes;
    memory.dstStageMask = to;
    memory.dstAccessMask = accesses;
    VkDependencyInfo info{VK_STRUCTURE_TYPE_DEPENDENCY_INFO};
    info.memoryBarrierCount = 1;
    info.pMemoryBarriers = &memory;
    vkCmdPipelineBarrier2(command, &info);
}

// Dispatches, copies and fills before; dispatches, grids, copies and fills after.
void record_full_barrier(CommandBufferImpl& impl) {
    record_barrier(impl.command, kCompute | kTransfer, kShaderWrites | VK_ACCESS_2_TRANSFER_WRITE_BIT,
                   kCompute | kTransfer | VK_PIPELINE_STAGE_2_DRAW_INDIRECT_BIT,
                   kShaderAccess | kTransferAccess | VK_ACCESS_2_INDIRECT_COMMAND_READ_BIT);
    impl.transfers_pending = false;
    impl.dispatches_hidden = false;
}

// A barrier between dispatches names the compute stage alone, which is the cheap form; what it leaves out is made up
// for here, at the next copy or fill.
void before_transfer(CommandBufferImpl& impl) {
    if (impl.dispatches_hidden) record_full_barrier(impl);
    impl.transfers_pending = true;
}

void write_timestamp(CommandBufferImpl& impl, uint32_t query) {
    constexpr uint32_t kPerPool = CommandBufferImpl::kTimedPerPool * 2;
    vkCmdWriteTimestamp2(impl.command, VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT, impl.query_pools[query / kPerPool],
                         query % kPerPool);
}

// Writes the first timestamp of a pair. False, and no timestamps from then on, if there is no pool for it.
bool begin_timed(CommandBufferImpl& impl, const DispatchInfo& info) {
    const uint32_t query = static_cast<uint32_t>(impl.timed.size()) * 2;
    impl.timed.push_back({info.name, info.bytes, info.flops});
    if (query / 2 % CommandBufferImpl::kTimedPerPool == 0) {
        VkQueryPoolCreateInfo pool_info{VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO};
        pool_info.queryType = VK_QUERY_TYPE_TIMESTAMP;
        pool_info.queryCount = CommandBufferImpl::kTimedPerPool * 2;
        VkQueryPool pool = VK_NULL_HANDLE;
        const VkResult result = vkCreateQueryPool(impl.device->vk, &pool_info, nullptr, &pool);
        if (result != VK_SUCCESS) {
            if (impl.failure.ok()) impl.failure = vk_error("vkCreateQueryPool", result);
            impl.timestamps = false;
            impl.timed.clear();
            return false;
        }
        impl.query_pools.push_back(pool);
        vkCmdResetQueryPool(impl.command, pool, 0, pool_info.queryCount);
    }
    write_timestamp(impl, query);
    return true;
}

void end_timed(CommandBufferImpl& impl) { write_timestamp(impl, static_cast<uint32_t>(impl.timed.size()) * 2 - 1); }

// Finds the parameters among the last ones, or copies them to where the dispatch will read them. Null, and there can be
// no dispatch, if there is no memory for them.
const CommandBufferImpl::PutParams* put_params(CommandBufferImpl& impl, std::span<const std::byte> params) {
    for (const CommandBufferImpl::PutParams& last : impl.last_put) {
        if (last.slab != nullptr && last.size == params.size() &&
            std::memcmp(last.bytes.data(), params.data(), params.size()) == 0)
            return &last;
    }
    ParamMemory& memory = *impl.device->params;
    if (impl.params.empty() || impl.params_used + ParamMemory::kParamBytesMax > ParamMemory::kBlockBytes) {
        Result<ParamMemory::Block> block = memory.take();
        if (!block.ok()) {
            if (impl.failure.ok()) impl.failure = std::move(block).error();
            return nullptr;
        }
        impl.params.push_back(block.value());
        impl.params_used = 0;
    }
    const ParamMemory::Block& block = impl.params.back();
    const uint32_t offset = block.begin + impl.params_used;
    std::memcpy(block.slab->mapped + offset, params.data(), params.size());
    impl.params_used += round_up(static_cast<uint32_t>(params.size()), memory.alignment());
    CommandBufferImpl::PutParams& last = impl.last_put[impl.n_put++ % impl.last_put.size()];
    std::ranges::copy(params, last.bytes.begin());
    last.size = params.size();
    last.slab = block.slab;
    last.offset = offset;
    return &last;
}

bool bind_params(CommandBufferImpl& impl, const KernelImpl& kernel, std::span<const std::byte> params) {
    const CommandBufferImpl::PutParams* const put = put_params(impl, params);
    if (put == nullptr) return false;
    vkCmdBindDescriptorSets(impl.command, VK_PIPELINE_BIND_POINT_COMPUTE, kernel.layout, 0, 1, &put->slab->set, 1,
                            &put->offset);
    return true;
}

// False if what is recorded has failed, see CommandBufferImpl::failure: nobody submits it.
bool before_dispatch(CommandBufferImpl& impl, const Kernel& kernel, std::span<const std::byte> params,
                     const DispatchInfo& info, VkPipeline instead = VK_NULL_HANDLE) {
    const KernelImpl& k = kernel.impl();
    const VkPipeline pipeline = instead != VK_NULL_HANDLE ? instead : k.pipeline;
    CHECK(params.size() % 4 == 0 && (params.size() <= kPushConstantBytes || k.function != VK_NULL_HANDLE));
    if (k.function != VK_NULL_HANDLE) {
        impl.bound = VK_NULL_HANDLE;
    } else {
        if (impl.bound != pipeline) vkCmdBindPipeline(impl.command, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
        impl.bound = pipeline;
        if (!k.params_in_buffer) {
            vkCmdPushConstants(impl.command, k.layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                               static_cast<uint32_t>(params.size()), params.data());
        } else if (!bind_params(impl, k, params)) {
            return false;
        }
    }
    if (impl.timestamps) begin_timed(impl, info);
    return true;
}

Work work_of(const DispatchInfo& info) {
    return {static_cast<double>(std::max(info.flops, info.flops_most)), static_cast<double>(info.bytes), 1};
}

Result<VkCommandBuffer> begin_command(const CommandBufferImpl& impl) {
    VkCommandBufferAllocateInfo allocate{VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO};
    allocate.commandPool = impl.pool;
    allocate.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
    allocate.commandBufferCount = 1;
    VkCommandBuffer command = VK_NULL_HANDLE;
    VK_TRY(vkAllocateCommandBuffers(impl.device->vk, &allocate, &command));
    VkCommandBufferBeginInfo info{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    info.flags = VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT;  // may be submitted again while pending
    VK_TRY(vkBeginCommandBuffer(command, &info));
    return command;
}

// Begins to take the time of what comes, for WorkRates.
void begin_timer(CommandBufferImpl& impl) {
    constexpr uint32_t kQueries = WorkTimers::kPairsMax * 2;
    if (impl.device->physical.timestamp_bits == 0) return;
    if (!impl.timers) {
        VkQueryPoolCreateInfo info{VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO};
        info.queryType = VK_QUERY_TYPE_TIMESTAMP;
        info.queryCount = kQueries;
        auto timers = std::make_shared<WorkTimers>();
        timers->device = impl.device;
        if (vkCreateQueryPool(impl.device->vk, &info, nullptr, &timers->pool) != VK_SUCCESS) return;
        vkCmdResetQueryPool(impl.command, timers->pool, 0, kQueries);
        impl.timers = std::move(timers);
    }
    if (impl.timers->timed.size() == WorkTimers::kPairsMax) return;
    vkCmdWriteTimestamp2(impl.command, VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT, impl.timers->pool,
                         static_cast<uint32_t>(impl.timers->timed.size()) * 2);
    impl.timers->timed.emplace_back();
    impl.is_timing = true;
}

void end_timer(CommandBufferImpl& impl) {
    if (!std::exchange(impl.is_timing, false)) return;
    vkCmdWriteTimestamp2(impl.command, VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT, impl.timers->pool,
                         static_cast<uint32_t>(impl.timers->timed.size()) * 2 - 1);
}

// The next recording, or the next segment, and the host once the timeline says so, see everything that this one wrote.
void record_last_barrier(VkCommandBuffer command) {
    record_barrier(command, kCompute | kTransfer, kShaderWrites | VK_ACCESS_2_TRANSFER_WRITE_BIT,
                   kCompute | kTransfer | VK_PIPELINE_STAGE_2_DRAW_INDIRECT_BIT | VK_PIPELINE_STAGE_2_HOST_BIT,
                   kShaderAccess | kTransferAccess | VK_ACCESS_2_INDIRECT_COMMAND_READ_BIT | VK_ACCESS_2_HOST_READ_BIT);
}

void keep_segment(CommandBufferImpl& impl) {
    impl.segments.push_back({impl.command, impl.work, impl.device->rates->us_of(impl.work)});
    impl.work = {};
}

Status cut_segment(CommandBufferImpl& impl) {
    TRY_ASSIGN(const VkCommandBuffer next, begin_command(impl));  // without it the open one goes on
    end_timer(impl);
    record_last_barrier(impl.command);
    const VkResult ended = vkEndCommandBuffer(impl.command);
    keep_segment(impl);
    impl.command = next;
    impl.bound = VK_NULL_HANDLE;
    impl.transfers_pending = impl.dispatches_hidden = false;
    if (ended != VK_SUCCESS) return vk_error("vkEndCommandBuffer", ended);
    return ok_status();
}

// Called before what has this work is recorded: where it would make the segment too long, another one begins.
// is_known: the device does just this work, so that its time tells how fast it is.
void make_room(CommandBufferImpl& impl, const Work& work, bool is_known) {
    if (impl.us_max == 0) return;
    const WorkRates& rates = *impl.device->rates;
    const double us = rates.us_of(work);
    // Half of a submission's: then more may turn out to be as slow as a device's later work tells.
    if (impl.work.n > 0 && rates.us_of(impl.work) + us > impl.us_max / 2) {
        if (Status cut = cut_segment(impl); !cut.ok() && impl.failure.ok()) impl.failure = std::move(cut);
    }
    // What takes less time is timed beside what takes more.
    constexpr double kTimedShare = 0.008;
    if (!is_known) end_timer(impl);
    if (is_known && !impl.is_timing && us > impl.us_max * kTimedShare) begin_timer(impl);
    impl.work += work;
    if (impl.is_timing) impl.timers->timed.back() += work;
}

// Microseconds, about, of a device that does 500 operations for each 3 bytes that it moves.
double cost_of(const DispatchInfo& info) {
    constexpr double kFlops = 500e6, kBytes = 3e6, kBegin = 4;
    return kBegin + std::max(static_cast<double>(info.flops) / kFlops, static_cast<double>(info.bytes) / kBytes);
}

// The parameters are copied.
void launch(VkCommandBuffer command, const KernelImpl& kernel, std::span<const std::byte> params, uint32_t x,
            uint32_t y, uint32_t z) {
    const void* const all_params[] = {params.data()};
    VkCuLaunchInfoNVX info{VK_STRUCTURE_TYPE_CU_LAUNCH_INFO_NVX};
    info.function = kernel.function;
    info.gridDimX = x;
    info.gridDimY = y;
    info.gridDimZ = z;
    info.blockDimX = kernel.threads;
    info.blockDimY = info.blockDimZ = 1;
    info.paramCount = 1;
    info.pParams = all_params;
    kernel.text->launch(command, &info);
}

// A device that only compiles records no dispatch: it counts it.
void only_count(CommandBufferImpl& impl, const Kernel& kernel, uint64_t n_workgroups, const DispatchInfo& info) {
    ++impl.n_dispatches;
    const KernelImpl& k = kernel.impl();
    std::lock_guard lock(k.use_mutex);
    KernelUse& use = k.use;
    if (use.n_dispatches++ == 0) use.name = info.name;
    use.n_workgroups_max = std::max(use.n_workgroups_max, n_workgroups);
    if (info.bytes == 0) return;
    const double flops_per_byte = static_cast<double>(info.flops) / static_cast<double>(info.bytes);
    use.flops_per_byte_min = use.tells_bytes ? std::min(use.flops_per_byte_min, flops_per_byte) : flops_per_byte;
    use.tells_bytes = true;
}

void after_dispatch(CommandBufferImpl& impl) {
    if (!impl.timestamps) return;
    end_timed(impl);
    record_full_barrier(impl);
}

bool is_known(const DispatchInfo& info) { return info.flops_most == 0 && (info.flops != 0 || info.bytes != 0); }

// A dispatch that is too long for a submission, by ranges of workgroups that each may be in another one. False: its
// workgroups may not be parted.
bool dispatch_in_slices(CommandBufferImpl& impl, const Kernel& kernel, std::span<const std::byte> params,
                        std::array<uint32_t, 3> grid, const DispatchInfo& info) {
    const KernelImpl& k = kernel.impl();
    const SlicedPipeline sliced = k.sliced();
    if (sliced.vk == VK_NULL_HANDLE) return false;
    const Work work = work_of(info);
    size_t axis = 0;
    for (size_t i = 1; i < grid.size() && sliced.all_axes; ++i) {
        if (grid[i] > grid[axis]) axis = i;
    }
    const auto wanted =
        static_cast<uint32_t>(std::clamp(std::ceil(impl.device->rates->us_of(work) / (impl.us_max / 2)), 1.0, 4096.0));
    const uint32_t n_slices = std::min(wanted, grid[axis] / SlicedPipeline::kLeastWidth);
    if (n_slices < 2) return false;
    for (uint32_t i = 0; i < n_slices; ++i) {
        const auto border = [&](uint32_t slice) {
            return static_cast<uint32_t>(uint64_t{grid[axis]} * slice / n_slices);
        };
        std::array<uint32_t, 3> base{}, size = grid;
        base[axis] = border(i);
        size[axis] = border(i + 1) - base[axis];
        const double share = static_cast<double>(size[axis]) / grid[axis];
        make_room(impl, {work.flops * share, work.bytes * share, 1}, is_known(info));
        if (!before_dispatch(impl, kernel, params, info, sliced.vk)) return true;
        vkCmdDispatchBase(impl.command, base[0], base[1], base[2], size[0], size[1], size[2]);
    }
    return true;
}

}  // namespace

WorkTimers::~WorkTimers() {
    if (pool != VK_NULL_HANDLE && !device->health.lost()) vkDestroyQueryPool(device->vk, pool, nullptr);
}

void WorkTimers::learn() const {
    std::vector<uint64_t> ticks(timed.size() * 2);
    if (vkGetQueryPoolResults(device->vk, pool, 0, static_cast<uint32_t>(ticks.size()), ticks.size() * sizeof(uint64_t),
                              ticks.data(), sizeof(uint64_t), VK_QUERY_RESULT_64_BIT) != VK_SUCCESS)
        return;
    for (size_t i = 0; i < timed.size(); ++i)
        device->rates->learn(timed[i], device->physical.us_between(ticks[2 * i], ticks[2 * i + 1]));
}

CommandBufferImpl::~CommandBufferImpl() {
    if (device == nullptr || device->health.lost() || device->compiles_only()) return;
    for (const ParamMemory::Block& block : params) device->params->give_back(block);
    for (VkQueryPool queries : query_pools) vkDestroyQueryPool(device->vk, queries, nullptr);
    if (pool != VK_NULL_HANDLE) vkDestroyCommandPool(device->vk, pool, nullptr);
}

CommandBuffer::CommandBuffer(std::unique_ptr<CommandBufferImpl> impl) : impl_(std::move(impl)) {}
CommandBuffer::~CommandBuffer() = default;
CommandBuffer::CommandBuffer(CommandBuffer&&) noexcept = default;
CommandBuffer& CommandBuffer::operator=(CommandBuffer&&) noexcept = default;
uint32_t CommandBuffer::n_dispatches() const { return impl_->n_dispatches; }

bool CommandBuffer::wants_cuts() const {
    if (impl_->us_max == 0) return false;
    constexpr double kSlower = 2;  // else it would be cut as it is
    constexpr double kFaster = 4;  // then it has cuts and timers that it needs no longer
    double us_now = 0, us_then = 0;
    for (const CommandBufferImpl::Segment& segment : impl_->segments) {
        const double us = impl_->device->rates->us_of(segment.work);
        if (us > impl_->us_max && us > kSlower * segment.us_when_recorded) return true;
        us_now += us;
        us_then += segment.us_when_recorded;
    }
    return (impl_->segments.size() > 1 || impl_->timers) && us_now * kFaster < us_then;
}

Recorder::Recorder(std::unique_ptr<CommandBufferImpl> impl) : impl_(std::move(impl)) {}
Recorder::Recorder(Recorder&&) noexcept = default;
Recorder::~Recorder() = default;

Result<Recorder> Recorder::begin(Device& device, const RecorderOptions& options) {
    auto impl = std::make_unique<CommandBufferImpl>();
    impl->device = &device.impl();
    if (impl->device->compiles_only()) return Recorder(std::move(impl));
    impl->ends_open = options.ends_open;
    impl->timestamps = options.timestamps && impl->device->physical.timestamp_bits > 0;
    VkCommandPoolCreateInfo pool{VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
    pool.queueFamilyIndex = impl->device->physical.compute_family;
    VK_TRY(vkCreateCommandPool(impl->device->vk, &pool, nullptr, &impl->pool));
    TRY_ASSIGN(impl->command, begin_command(*impl));
    if (!options.timestamps) impl->us_max = static_cast<double>(impl->device->submission_max.count());
    impl->span = options.span_timestamps && !options.timestamps && impl->device->physical.timestamp_bits > 0;
    if (impl->span) impl->span = begin_timed(*impl, {.name = "recording"});
    return Recorder(std::move(impl));
}

void Recorder::dispatch_raw(const Kernel& kernel, std::span<const std::byte> params, uint32_t x, uint32_t y, uint32_t z,
                            const DispatchInfo& info) {
    if (impl_->device->compiles_only()) return only_count(*impl_, kernel, uint64_t{x} * y * z, info);
    if (impl_->part) impl_->part->costs.back() += cost_of(info);
    if (leaves_out()) return;
    ++impl_->n_dispatches;
    const Work work = work_of(info);
    if (impl_->us_max != 0 && impl_->device->rates->us_of(work) > impl_->us_max &&
        dispatch_in_slices(*impl_, kernel, params, {x, y, z}, info))
        return;
    make_room(*impl_, work, is_known(info));
    if (!before_dispatch(*impl_, kernel, params, info)) return;
    const KernelImpl& k = kernel.impl();
    if (k.function != VK_NULL_HANDLE)
        launch(impl_->command, k, params, x, y, z);
    else
        vkCmdDispatch(impl_->command, x, y, z);
    after_dispatch(*impl_);
}

void Recorder::dispatch_indirect_raw(const Kernel& kernel, std::span<const std::byte> params, const Buffer& grid,
                                     uint64_t grid_offset, const DispatchInfo& info) {
    CHECK(kernel.impl().function == VK_NULL_HANDLE);
    CHECK(grid_offset % 4 == 0 && grid_offset + 12 <= grid.size());
    if (impl_->device->compiles_only()) return only_count(*impl_, kernel, 0, info);
    if (impl_->part) impl_->part->costs.back() += cost_of(info);
    if (leaves_out()) return;
    ++impl_->n_dispatches;
    make_room(*impl_, work_of(info), is_known(info));
    if (!before_dispatch(*impl_, kernel, params, info)) return;
    vkCmdDispatchIndirect(impl_->command, grid.impl().vk(), grid.impl().offset + grid_offset);
    after_dispatch(*impl_);
}

void Recorder::begin_part(uint32_t from, uint32_t to) {
    CHECK(!impl_->part);
    impl_->part = CommandBufferImpl::Part{.from = from, .to = to};
}

std::vector<double> Recorder::end_part() {
    CHECK(impl_->part);
    std::vector<double> costs = std::move(impl_->part->costs);
    impl_->part.reset();
    return costs;
}

void Recorder::cut() {
    if (impl_->part) impl_->part->costs.push_back(0);
}

bool Recorder::in_parts() const { return impl_->part.has_value(); }
bool Recorder::leaves_out() const { return impl_->part && !impl_->part->is_recorded(); }

void Recorder::barrier() {
    if (impl_->device->compiles_only() || leaves_out()) return;
    if (impl_->transfers_pending) {
        record_full_barrier(*impl_);
        return;
    }
    record_barrier(impl_->command, kCompute, kShaderWrites, kCompute, kShaderAccess);
    impl_->dispatches_hidden = true;
}

void Recorder::barrier_before_indirect() {
    if (!impl_->device->compiles_only() && !leaves_out()) record_full_barrier(*impl_);
}

void Recorder::copy(const Buffer& from, uint64_t from_offset, const Buffer& to, uint64_t to_offset,
                    uint64_t size_bytes) {
    CHECK(size_bytes > 0 && from_offset + size_bytes <= from.size() && to_offset + size_bytes <= to.size());
    if (impl_->device->compiles_only()) return;
    if (impl_->part) impl_->part->costs.back() += cost_of({.bytes = size_bytes});
    if (leaves_out()) return;
    make_room(*impl_, {.bytes = static_cast<double>(size_bytes), .n = 1}, true);
    before_transfer(*impl_);
    const VkBufferCopy region{from.impl().offset + from_offset, to.impl().offset + to_offset, size_bytes};
    vkCmdCopyBuffer(impl_->command, from.impl().vk(), to.impl().vk(), 1, &region);
}

void Recorder::fill(const Buffer& buffer, uint64_t offset, uint64_t size_bytes, uint32_t word) {
    CHECK(size_bytes > 0 && size_bytes % 4 == 0 && offset % 4 == 0 && offset + size_bytes <= buffer.size());
    if (impl_->device->compiles_only()) return;
    if (impl_->part) impl_->part->costs.back() += cost_of({.bytes = size_bytes});
    if (leaves_out()) return;
    make_room(*impl_, {.bytes = static_cast<double>(size_bytes), .n = 1}, true);
    before_transfer(*impl_);
    vkCmdFillBuffer(impl_->command, buffer.impl().vk(), buffer.impl().offset + offset, size_bytes, word);
}

Result<CommandBuffer> Recorder::end() && {
    CommandBufferImpl& impl = *impl_;
    if (impl.device->compiles_only()) return CommandBuffer(std::move(impl_));
    end_timer(impl);
    if (impl.span) end_timed(impl);
    if (!impl.ends_open) record_last_barrier(impl.command);
    VK_TRY(vkEndCommandBuffer(impl.command));
    if (!impl.failure.ok()) return impl.failure.error();
    keep_segment(impl);
    return CommandBuffer(std::move(impl_));
}

}  // namespace lorad::gpu
