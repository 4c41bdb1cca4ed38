// What a command buffer holds, kept to be recorded in another order than it came, and anew where another barrier is to
// be left out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "tests/vulkan_layer/control.h"
#include "tests/vulkan_layer/tables.h"

namespace lorad::testing::fault {

// One command buffer; used by the thread that records or submits it.
class CommandList {
  public:
    using Work = std::function<void(VkCommandBuffer, const DeviceTable&)>;
    using IsLeftOut = std::function<bool(uint64_t number)>;  // of the barrier of that number
    struct Recorded {
        uint64_t n_reordered = 0;  // pieces between barriers that are in another order than they came
        uint64_t n_left_out = 0;
    };

    void begin(Order order, VkCommandBufferUsageFlags usage);
    // False: commands are to be passed on as they come. Else they are kept until record(); commands that the layer does
    // not know come before all of them.
    bool keeps() const { return order_ != kAsRecorded; }
    VkCommandBufferUsageFlags usage() const { return usage_; }
    void set_pool(VkCommandPool pool) { pool_ = pool; }
    VkCommandPool pool() const { return pool_; }

    void bind(VkPipelineBindPoint point, VkPipeline pipeline);
    void push(VkPipelineLayout layout, VkShaderStageFlags stages, uint32_t offset, uint32_t size, const void* values);
    void keep(Work work) { commands_.push_back({state_, std::move(work)}); }
    void keep_barrier(uint64_t number, const VkDependencyInfo& info);

    // Into a command buffer that was begun, all that was kept, in the order of begin(), without the barriers that are
    // left out.
    Recorded record(VkCommandBuffer command, const DeviceTable& by, const IsLeftOut& is_left_out);
    // Whether record() would record the same again.
    bool is_as_recorded(const IsLeftOut& is_left_out) const;
    // The barrier at its end was left out: what is submitted behind it may run before it.
    bool ends_open() const { return !commands_.empty() && commands_.back().is_left_out; }

  private:
    struct State {
        VkPipelineBindPoint point = VK_PIPELINE_BIND_POINT_COMPUTE;
        VkPipeline pipeline = VK_NULL_HANDLE;
        VkPipelineLayout layout = VK_NULL_HANDLE;
        VkShaderStageFlags stages = 0;
        uint32_t n_bytes = 0;
        std::array<std::byte, 256> constants{};
    };
    struct Command {
        State state;
        Work work;
        uint64_t barrier = 0;  // its number, if it is one
        bool is_left_out = false;
    };
    static void set(VkCommandBuffer command, const DeviceTable& by, const State& state);

    Order order_ = kAsRecorded;
    VkCommandBufferUsageFlags usage_ = 0;
    VkCommandPool pool_ = VK_NULL_HANDLE;
    State state_;
    std::vector<Command> commands_;
};

}  // namespace lorad::testing::fault
