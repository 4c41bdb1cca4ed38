#include "gpu/upload.h"

#include <algorithm>
#include <cstring>

#include "gpu/upload_impl.h"
#include "proto/base/rounding.h"

namespace lorad::gpu {
namespace {

constexpr uint64_t kUploadMiB = 1u << 20;
constexpr size_t kUploadChunks = 4;
constexpr uint64_t kGpuChunkBytes = 32 * kUploadMiB;
constexpr uint64_t kCpuChunkBytes = 4 * kUploadMiB;
constexpr size_t kMaxCopyThreads = 8;
constexpr size_t kMaxUnorderedWrites = 512;
constexpr size_t kMaxRegions = 512;  // of one copy command; validation compares each with each
constexpr std::chrono::seconds kDeadline{60};

size_t copy_threads() {
    const size_t cores = std::max(1u, std::thread::hardware_concurrency());
    return std::min(kMaxCopyThreads, cores);
}

}  // namespace

UploaderImpl::UploaderImpl(DeviceImpl& device) : device_(device), copy_pool_(copy_threads()) {}

UploaderImpl::~UploaderImpl() {
    if (device_.health.lost()) return;
    for (Chunk& chunk : chunks_) {
        if (chunk.pool != VK_NULL_HANDLE) vkDestroyCommandPool(device_.vk, chunk.pool, nullptr);
    }
}

Status UploaderImpl::init() {
    chunk_bytes_ = device_.physical.capabilities.is_cpu ? kCpuChunkBytes : kGpuChunkBytes;
    chunks_.resize(kUploadChunks);
    for (Chunk& chunk : chunks_) {
        VkCommandPoolCreateInfo pool{VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
        pool.queueFamilyIndex = device_.physical.transfer_family;
        VK_TRY(vkCreateCommandPool(device_.vk, &pool, nullptr, &chunk.pool));
        VkCommandBufferAllocateInfo allocate{VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO};
        allocate.commandPool = chunk.pool;
        allocate.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
        allocate.commandBufferCount = 1;
        VK_TRY(vkAllocateCommandBuffers(device_.vk, &allocate, &chunk.command));
    }
    return timeline_.init(device_.vk, device_.health, "upload queue");
}

Status UploaderImpl::open_chunk() {
    Chunk& chunk = chunks_[current_];
    if (!chunk.staging) {
        TRY_ASSIGN(auto staging, device_.memory->allocate(chunk_bytes_, MemoryKind::kHostUpload, "upload staging"));
        chunk.staging = Buffer(std::move(staging));
    }
    TRY(timeline_.wait(chunk.busy_until, kDeadline));
    VK_TRY(vkResetCommandPool(device_.vk, chunk.pool, 0));
    VkCommandBufferBeginInfo begin{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    begin.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
    VK_TRY(vkBeginCommandBuffer(chunk.command, &begin));
    open_ = true;
    used_ = 0;
    return ok_status();
}

Status UploaderImpl::submit_current() {
    Chunk& chunk = chunks_[current_];
    open_ = false;
    const VkCommandBuffer commands[] = {chunk.command};
    constexpr uint32_t kEnds[] = {1};
    const VkResult ended = vkEndCommandBuffer(chunk.command);
    const Result<uint64_t> submitted = ended == VK_SUCCESS
                                           ? timeline_.submit(*device_.upload_queue, commands, kEnds, nullptr, 0)
                                           : Result<uint64_t>(vk_error("vkEndCommandBuffer of an upload", ended));
    // The chunk holds uploads of other threads as well, which have been told that theirs would come.
    if (!submitted.ok()) return device_.health.note_loss(submitted.error());
    chunk.busy_until = *submitted;
    current_ = (current_ + 1) % chunks_.size();
    return ok_status();
}

// Copies run in any order unless a barrier stands between them: one is recorded where two would write the same bytes.
void UploaderImpl::note_write(const Buffer& to, uint64_t offset, uint64_t size) {
    const Write write{to.impl().vk(), to.impl().offset + offset, to.impl().offset + offset + size};
    const bool overlaps = std::any_of(unordered_writes_.begin(), unordered_writes_.end(), [&](const Write& other) {
        return other.buffer == write.buffer && other.begin < write.end && write.begin < other.end;
    });
    if (overlaps || unordered_writes_.size() >= kMaxUnorderedWrites) {
        VkMemoryBarrier2 memory{VK_STRUCTURE_TYPE_MEMORY_BARRIER_2};
        memory.srcStageMask = VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT;
        memory.srcAccessMask = VK_ACCESS_2_TRANSFER_WRITE_BIT;
        memory.dstStageMask = VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT;
        memory.dstAccessMask = VK_ACCESS_2_TRANSFER_WRITE_BIT;
        VkDependencyInfo dependency{VK_STRUCTURE_TYPE_DEPENDENCY_INFO};
        dependency.memoryBarrierCount = 1;
        dependency.pMemoryBarriers = &memory;
        vkCmdPipelineBarrier2(chunks_[current_].command, &dependency);
        unordered_writes_.clear();
    }
    unordered_writes_.push_back(write);
}

// Stages the bytes in the open chunk and records their copies; regions' srcOffset counts from the first byte.
Status UploaderImpl::append(const Buffer& to, std::span<const std::byte> bytes, std::vector<VkBufferCopy>& regions) {
    Chunk& chunk = chunks_[current_];
    copy_pool_.copy(chunk.staging.mapped().data() + used_, bytes.data(), bytes.size());
    for (VkBufferCopy& region : regions) region.srcOffset += chunk.staging.impl().offset + used_;
    vkCmdCopyBuffer(chunk.command, chunk.staging.impl().vk(), to.impl().vk(), static_cast<uint32_t>(regions.size()),
                    regions.data());
    used_ = std::min(chunk_bytes_, round_up(used_ + bytes.size(), 256));
    if (used_ == chunk_bytes_) return submit_current();
    return ok_status();
}

// Into memory that the device reads in place: what is submitted from now on sees it.
void UploaderImpl::write_rows(std::byte* to, uint64_t to_stride, std::span<const std::byte> bytes, uint64_t row_bytes,
                              uint64_t n_rows) {
    if (to_stride == row_bytes || n_rows == 1) {
        copy_pool_.copy(to, bytes.data(), bytes.size());
        return;
    }
    for (uint64_t row = 0; row < n_rows; ++row)
        std::memcpy(to + row * to_stride, bytes.data() + row * row_bytes, row_bytes);
}

Status UploaderImpl::upload_rows(const Buffer& to, uint64_t to_offset, uint64_t to_stride,
                                 std::span<const std::byte> bytes, uint64_t row_bytes, uint64_t n_rows) {
    CHECK(bytes.size() == row_bytes * n_rows && to_stride >= row_bytes);
    if (bytes.empty()) return ok_status();
    CHECK(to_offset + (n_rows - 1) * to_stride + row_bytes <= to.size());
    if (device_.compiles_only()) return ok_status();
    std::lock_guard lock(mutex_);
    if (std::byte* const there = to.impl().device_bytes()) {
        write_rows(there + to_offset, to_stride, bytes, row_bytes, n_rows);
        return ok_status();
    }
    const uint64_t base = to.impl().offset + to_offset;
    std::vector<VkBufferCopy> regions;
    for (uint64_t done = 0; done < bytes.size();) {
        if (!open_) TRY(open_chunk());
        const uint64_t room = std::min<uint64_t>(chunk_bytes_ - used_, bytes.size() - done);
        // Pieces may begin and end inside a row.
        regions.clear();
        uint64_t n = 0;
        while (n < room && regions.size() < kMaxRegions) {
            const uint64_t row = (done + n) / row_bytes;
            const uint64_t column = (done + n) % row_bytes;
            const uint64_t piece = to_stride == row_bytes ? room - n : std::min(row_bytes - column, room - n);
            regions.push_back({n, base + row * to_stride + column, piece});
            n += piece;
        }
        const uint64_t first = regions.front().dstOffset;
        const uint64_t end = regions.back().dstOffset + regions.back().size;
        note_write(to, first - to.impl().offset, end - first);
        to.impl().last_upload = timeline_.last_submitted() + 1;
        TRY(append(to, bytes.subspan(done, n), regions));
        done += n;
    }
    return ok_status();
}

Status UploaderImpl::fill_zero(const Buffer& to, uint64_t to_offset, uint64_t size_bytes) {
    CHECK(size_bytes % 4 == 0 && to_offset % 4 == 0 && to_offset + size_bytes <= to.size());
    if (size_bytes == 0 || device_.compiles_only()) return ok_status();
    std::lock_guard lock(mutex_);
    if (std::byte* const there = to.impl().device_bytes()) {
        std::memset(there + to_offset, 0, size_bytes);
        return ok_status();
    }
    if (!open_) TRY(open_chunk());
    note_write(to, to_offset, size_bytes);
    to.impl().last_upload = timeline_.last_submitted() + 1;
    vkCmdFillBuffer(chunks_[current_].command, to.impl().vk(), to.impl().offset + to_offset, size_bytes, 0);
    return ok_status();
}

Result<uint64_t> UploaderImpl::flush() {
    std::lock_guard lock(mutex_);
    if (open_) TRY(submit_current());
    return timeline_.last_submitted();
}

Status UploaderImpl::wait(uint64_t value) {
    if (device_.compiles_only()) return ok_status();
    return timeline_.wait(value, kDeadline);
}

void UploaderImpl::settle(uint64_t value) {
    if (timeline_.is_known_completed(value)) return;
    {
        std::lock_guard lock(mutex_);
        if (open_ && value > timeline_.last_submitted() && !submit_current().ok()) return;
    }
    if (value <= timeline_.last_submitted()) (void)timeline_.wait(value, kDeadline).ok();
}

Status Uploader::upload(const Buffer& to, uint64_t to_offset, std::span<const std::byte> bytes) {
    if (bytes.empty()) return ok_status();
    return impl_->upload_rows(to, to_offset, bytes.size(), bytes, bytes.size(), 1);
}

Status Uploader::upload_rows(const Buffer& to, uint64_t to_offset, uint64_t to_stride, std::span<const std::byte> bytes,
                             uint64_t row_bytes, uint64_t n_rows) {
    return impl_->upload_rows(to, to_offset, to_stride, bytes, row_bytes, n_rows);
}

Status Uploader::fill_zero(const Buffer& to, uint64_t to_offset, uint64_t size_bytes) {
    return impl_->fill_zero(to, to_offset, size_bytes);
}

Result<uint64_t> Uploader::flush() { return impl_->flush(); }

Status Uploader::wait(uint64_t value) { return impl_->wait(value); }

Status Uploader::finish() {
    TRY_ASSIGN(const uint64_t value, flush());
    return wait(value);
}

}  // namespace lorad::gpu
