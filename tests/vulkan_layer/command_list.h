// Recorded work that waits for the next barrier, to be recorded in another order than it came.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "tests/vulkan_layer/control.h"
#include "tests/vulkan_layer/tables.h"

namespace lorad::testing::fault {

// One command buffer; used by the thread that records it.
class CommandList {
  public:
    using Work = std::function<void(VkCommandBuffer, const DeviceTable&)>;

    void begin(Order order);
    // What the commands after these see; both are also passed on as they come.
    void bind(VkPipelineBindPoint point, VkPipeline pipeline);
    void push(VkPipelineLayout layout, VkShaderStageFlags stages, uint32_t offset, uint32_t size, const void* values);

    // Keeps the work for flush(); false where it is to be recorded at once.
    bool defer(Work work);
    // A barrier that was left out: if it is the last command, what is submitted behind this may run before it.
    void drop_barrier() { ends_open_ = true; }
    bool ends_open() const { return ends_open_; }
    // Records what was kept, in the order of begin(). Returns 1 if that differs from how it came, else 0.
    uint64_t flush(VkCommandBuffer command, const DeviceTable& by);

  private:
    struct State {
        VkPipelineBindPoint point = VK_PIPELINE_BIND_POINT_COMPUTE;
        VkPipeline pipeline = VK_NULL_HANDLE;
        VkPipelineLayout layout = VK_NULL_HANDLE;
        VkShaderStageFlags stages = 0;
        uint32_t n_bytes = 0;
        std::array<std::byte, 256> constants{};
    };
    static void set(VkCommandBuffer command, const DeviceTable& by, const State& state);

    Order order_ = kAsRecorded;
    State state_;
    bool ends_open_ = false;
    std::vector<std::pair<State, Work>> kept_;
};

}  // namespace lorad::testing::fault
