// Internal to gpu/.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/command.h"
#include "gpu/device_impl.h"

namespace lorad::gpu {

// Timestamps around long parts of a recording, for WorkRates: read when a submission of it is done, by the queue, which
// the recording need not outlive.
struct WorkTimers {
    static constexpr uint32_t kPairsMax = 32;

    DeviceImpl* device = nullptr;
    VkQueryPool pool = VK_NULL_HANDLE;
    std::vector<Work> timed;               // entry i: queries 2i and 2i + 1
    std::atomic<uint64_t> last_value = 0;  // of the queue's timeline, of its last submission

    WorkTimers() = default;
    ~WorkTimers();
    WorkTimers(const WorkTimers&) = delete;
    WorkTimers& operator=(const WorkTimers&) = delete;
    void learn() const;  // the submission of last_value is done
};

struct CommandBufferImpl {
    struct Timed {
        std::string name;
        uint64_t bytes = 0;
        uint64_t flops = 0;
    };
    static constexpr uint32_t kTimedPerPool = 512;  // dispatches, two queries each

    DeviceImpl* device = nullptr;
    VkCommandPool pool = VK_NULL_HANDLE;  // its own, so that any thread may destroy it
    // What is submitted at once at least; in order.
    struct Segment {
        VkCommandBuffer command = VK_NULL_HANDLE;
        Work work;
        double us_when_recorded = 0;
    };
    std::vector<Segment> segments;  // those that are ended
    uint32_t n_dispatches = 0;
    uint64_t last_submission = 0;  // compute timeline value; 0: never submitted

    bool timestamps = false;  // a pair for each dispatch
    bool span = false;        // one pair for all
    std::vector<VkQueryPool> query_pools;
    std::vector<Timed> timed;  // entry i: queries 2i and 2i+1, counted over the pools

    std::vector<ParamMemory::Block> params;  // of its dispatches; none where they are push constants
    uint32_t params_used = 0;                // bytes of the last one

    std::shared_ptr<WorkTimers> timers;  // null: no part of it is long

    // While recording.
    VkCommandBuffer command = VK_NULL_HANDLE;  // of the open segment,
    Work work;                                 // and what it has so far
    bool is_timing = false;                    // the last of the timers has begun and not ended
    double us_max = 0;                         // of a submission; 0: it is not cut
    // The last parameters that were put into the blocks. A dispatch that has the same reads these: they are in the
    // cache by then.
    struct PutParams {
        std::array<std::byte, ParamMemory::kParamBytesMax> bytes{};
        size_t size = 0;
        const ParamMemory::Slab* slab = nullptr;  // null: none yet
        uint32_t offset = 0;
    };
    std::array<PutParams, 4> last_put;
    size_t n_put = 0;  // entry n_put % 4 is the oldest
    VkPipeline bound = VK_NULL_HANDLE;
    bool transfers_pending = false;  // copies or fills since the last barrier
    bool ends_open = false;          // RecorderOptions
    bool dispatches_hidden = false;  // a barrier for dispatches alone was recorded; copies may not rely on it
    Status failure = ok_status();    // the first, reported by end()
    struct Part {
        uint32_t from = 0, to = 0;     // cuts between which calls are recorded
        std::vector<double> costs{0};  // of the stretches up to now
        bool is_recorded() const { return costs.size() > from && costs.size() <= to; }
    };
    std::optional<Part> part;

    CommandBufferImpl() = default;
    ~CommandBufferImpl();
    CommandBufferImpl(const CommandBufferImpl&) = delete;
    CommandBufferImpl& operator=(const CommandBufferImpl&) = delete;
};

}  // namespace lorad::gpu
