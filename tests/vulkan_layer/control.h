// The words of the file that a test and the fault layer share (LORAD_FAULT_CONTROL): the test writes when a call is to
// fail, the layer counts.
// tests/vulkan_layer/control.py has the same numbers for Python.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lorad::testing::fault {

inline constexpr size_t kWords = 512;

// What is counted and can be made to fail.
enum Call : size_t {
    kSubmit,    // vkQueueSubmit2
    kWait,      // vkWaitSemaphores
    kCounter,   // vkGetSemaphoreCounterValue
    kAllocate,  // vkAllocateMemory
    kCreate,    // every other vkCreate and vkAllocate of a device, vkMapMemory, vkBindBufferMemory
    kRecord,    // vkBeginCommandBuffer, vkEndCommandBuffer, vkResetCommandPool
    kBarrier,   // vkCmdPipelineBarrier2; "fails" by not being recorded
    kCalls,
};

// Which word is what. A call fails when its number (from 1) is in first_failing .. first_failing + n_failing - 1.
enum Word : size_t {
    kNumberOf = 16,         // + Call: calls so far (the layer)
    kFirstFailing = 32,     // + Call: 0: none
    kHowMany = 48,          // + Call: 0: all from the first one on
    kResult = 64,           // + Call: the VkResult that it gives, as int64
    kLiveAllocations = 80,  // the layer
    kLiveBytes = 81,
    kLiveObjects = 82,
    kInjected = 83,    // faults given so far
    kLost = 84,        // 1 after a VK_ERROR_DEVICE_LOST: every later call of that kind of error gives it as well
    kHold = 85,        // while not 0 no wait ends before its own timeout, and no counter moves
    kOrder = 86,       // Order, read when a command buffer is begun
    kInjectedAt = 87,  // CLOCK_MONOTONIC in ns of the first fault
    kReordered = 88,   // pieces of recordings that were put in another order
};

// The order in which the commands between barriers are recorded. An implementation may run them in any; software
// devices run them one after another as recorded, so that a barrier that is missing shows nowhere. The layer records
// them otherwise:
enum Order : uint64_t {
    kAsRecorded = 0,
    kReversed = 1,  // the last first; where a barrier was dropped, also across it
};

}  // namespace lorad::testing::fault
