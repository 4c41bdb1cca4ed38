#include "gpu/queue.h"

#include <algorithm>
#include <thread>

#include "gpu/command_impl.h"
#include "gpu/device_impl.h"
#include "proto/base/format.h"

namespace lorad::gpu {
namespace {

constexpr int kTriesMax = 4;
constexpr std::chrono::milliseconds kBeforeRetry{5};  // what runs gives memory back when it ends

bool is_out_of_memory(VkResult result) {
    return result == VK_ERROR_OUT_OF_HOST_MEMORY || result == VK_ERROR_OUT_OF_DEVICE_MEMORY;
}

// Calls that change nothing where there is no memory for them.
template <typename Call>
VkResult with_retries(const Call& call) {
    VkResult result = call();
    for (int tries = 1; tries < kTriesMax && is_out_of_memory(result); ++tries) {
        std::this_thread::sleep_for(kBeforeRetry);
        result = call();
    }
    return result;
}

}  // namespace

Status Timeline::init(VkDevice device, DeviceHealth& health, const char* what) {
    device_ = device;
    health_ = &health;
    what_ = what;
    VkSemaphoreTypeCreateInfo type{VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO};
    type.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE;
    VkSemaphoreCreateInfo info{VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, &type};
    VK_TRY(vkCreateSemaphore(device, &info, nullptr, &semaphore_));
    return ok_status();
}

Timeline::~Timeline() {
    if (semaphore_ != VK_NULL_HANDLE && !health_->lost()) vkDestroySemaphore(device_, semaphore_, nullptr);
}

void Timeline::saw_completed(uint64_t value) {
    uint64_t seen = seen_completed_.load();
    while (seen < value && !seen_completed_.compare_exchange_weak(seen, value)) {
    }
}

Result<uint64_t> Timeline::submit(SharedQueue& queue, std::span<const VkCommandBuffer> commands,
                                  std::span<const uint32_t> ends, Timeline* after, uint64_t after_value) {
    CHECK(!ends.empty() && ends.back() == commands.size());
    TRY(status());
    std::vector<VkCommandBufferSubmitInfo> infos;
    for (VkCommandBuffer command : commands) {
        infos.push_back({VK_STRUCTURE_TYPE_COMMAND_BUFFER_SUBMIT_INFO, nullptr, command, 0});
    }
    VkSemaphoreSubmitInfo wait{VK_STRUCTURE_TYPE_SEMAPHORE_SUBMIT_INFO};
    VkSemaphoreSubmitInfo signal{VK_STRUCTURE_TYPE_SEMAPHORE_SUBMIT_INFO};
    signal.semaphore = semaphore_;
    signal.stageMask = VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT;
    std::vector<VkSemaphoreSubmitInfo> signals(ends.size(), signal);
    std::vector<VkSubmitInfo2> parts(ends.size(), {VK_STRUCTURE_TYPE_SUBMIT_INFO_2});
    for (size_t i = 0, begin = 0; i < parts.size(); begin = ends[i++]) {
        parts[i].commandBufferInfoCount = static_cast<uint32_t>(ends[i] - begin);
        parts[i].pCommandBufferInfos = infos.data() + begin;
        // Also in the middle: drivers join parts that signal nothing into one submission.
        parts[i].signalSemaphoreInfoCount = 1;
        parts[i].pSignalSemaphoreInfos = &signals[i];
    }
    // A value that is known to be reached needs no wait: a wait costs the device time even then.
    if (after != nullptr && after_value > after->seen_completed_.load()) {
        TRY(after->completed());
    }
    if (after != nullptr && after_value > after->seen_completed_.load()) {
        TRY(after->status());
        CHECK(after_value <= after->last_submitted());  // else the queue would never stop waiting
        wait.semaphore = after->semaphore_;
        wait.value = after_value;
        wait.stageMask = VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT;
        parts.front().waitSemaphoreInfoCount = 1;
        parts.front().pWaitSemaphoreInfos = &wait;
    }
    std::lock_guard lock(queue.mutex);  // also keeps the values of one timeline in submission order
    for (size_t i = 0; i < signals.size(); ++i) signals[i].value = last_submitted_.load() + 1 + i;
    const VkResult result = with_retries(
        [&] { return vkQueueSubmit2(queue.vk, static_cast<uint32_t>(parts.size()), parts.data(), VK_NULL_HANDLE); });
    if (result != VK_SUCCESS) {
        Error error = vk_error("vkQueueSubmit2", result);
        error.message += format(" on the {}", what_);
        if (is_out_of_memory(result)) return error;
        return health_->note_loss(std::move(error));
    }
    last_submitted_ = signals.back().value;
    return signals.back().value;
}

Status Timeline::wait(uint64_t value, std::chrono::milliseconds deadline) {
    TRY(status());
    CHECK(value <= last_submitted_.load());
    VkSemaphoreWaitInfo info{VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO};
    info.semaphoreCount = 1;
    info.pSemaphores = &semaphore_;
    info.pValues = &value;
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline).count();
    const VkResult result = with_retries([&] { return vkWaitSemaphores(device_, &info, static_cast<uint64_t>(ns)); });
    if (result == VK_SUCCESS) {
        saw_completed(value);
        return ok_status();
    }
    if (result == VK_TIMEOUT) {
        return health_->note_loss(make_error(
            ErrorCode::kDeviceLost, format("the {} did not finish submission {} within {} ms: the device hangs", what_,
                                           value, deadline.count())));
    }
    return health_->note_loss(vk_error("vkWaitSemaphores", result));
}

Result<uint64_t> Timeline::completed() {
    TRY(status());
    uint64_t value = 0;
    const VkResult result = with_retries([&] { return vkGetSemaphoreCounterValue(device_, semaphore_, &value); });
    if (result != VK_SUCCESS) return health_->note_loss(vk_error("vkGetSemaphoreCounterValue", result));
    saw_completed(value);
    return value;
}

Result<uint64_t> Queue::submit(std::span<const CommandBuffer* const> recordings) {
    return submit_after_upload(recordings, 0);
}

Result<uint64_t> Queue::submit_after_upload(std::span<const CommandBuffer* const> recordings, uint64_t upload_value) {
    if (!impl_->refusal.empty()) return make_error(ErrorCode::kInternal, impl_->refusal);
    std::vector<VkCommandBuffer> commands;
    std::vector<uint32_t> ends;
    const auto us_max = static_cast<double>(impl_->device->submission_max.count());
    double us = 0;
    for (const CommandBuffer* recording : recordings) {
        for (const CommandBufferImpl::Segment& segment : recording->impl().segments) {
            const double more = impl_->device->rates->us_of(segment.work);
            if (us_max != 0 && !commands.empty() && us + more > us_max) {
                ends.push_back(static_cast<uint32_t>(commands.size()));
                us = 0;
            }
            commands.push_back(segment.command);
            us += more;
        }
    }
    ends.push_back(static_cast<uint32_t>(commands.size()));
    TRY_ASSIGN(const uint64_t value,
               impl_->timeline.submit(*impl_->queue, commands, ends, impl_->uploads, upload_value));
    for (const CommandBuffer* recording : recordings) {
        recording->impl().last_submission = value;
        if (recording->impl().timers) impl_->note_timers(recording->impl().timers, value);
    }
    return value;
}

void QueueImpl::note_timers(const std::shared_ptr<WorkTimers>& of_recording, uint64_t value) {
    const std::lock_guard lock(timers_mutex);
    of_recording->last_value = value;
    if (std::ranges::find(timers, of_recording) == timers.end()) timers.push_back(of_recording);
}

// A recording that was submitted again is read behind its last submission.
void QueueImpl::learn_up_to(uint64_t value) {
    const std::lock_guard lock(timers_mutex);
    std::erase_if(timers, [&](const std::shared_ptr<WorkTimers>& one) {
        if (one->last_value > value) return false;
        one->learn();
        return true;
    });
}

Status Queue::wait(uint64_t value) { return wait(value, impl_->patience); }

Status Queue::wait(uint64_t value, std::chrono::milliseconds deadline) {
    if (!impl_->refusal.empty()) return ok_status();  // nothing was submitted
    TRY(impl_->timeline.wait(value, deadline));
    impl_->learn_up_to(value);
    return ok_status();
}

Status Queue::health() const { return impl_->refusal.empty() ? impl_->timeline.status() : ok_status(); }

Result<uint64_t> Queue::completed() const {
    if (!impl_->refusal.empty()) return uint64_t{0};
    return impl_->timeline.completed();
}

}  // namespace lorad::gpu
