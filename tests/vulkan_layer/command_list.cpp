#include "tests/vulkan_layer/command_list.h"

#include <algorithm>
#include <cstring>

namespace lorad::testing::fault {

void CommandList::begin(Order order) {
    order_ = order;
    state_ = State();
    ends_open_ = false;
    kept_.clear();
}

void CommandList::bind(VkPipelineBindPoint point, VkPipeline pipeline) {
    state_.point = point;
    state_.pipeline = pipeline;
}

void CommandList::push(VkPipelineLayout layout, VkShaderStageFlags stages, uint32_t offset, uint32_t size, const void* values) {
    state_.layout = layout;
    state_.stages = stages;
    state_.n_bytes = std::max(state_.n_bytes, offset + size);
    std::memcpy(state_.constants.data() + offset, values, size);
}

bool CommandList::defer(Work work) {
    ends_open_ = false;
    if (order_ == kAsRecorded) return false;
    kept_.emplace_back(state_, std::move(work));
    return true;
}

void CommandList::set(VkCommandBuffer command, const DeviceTable& by, const State& state) {
    if (state.pipeline != VK_NULL_HANDLE) by.CmdBindPipeline(command, state.point, state.pipeline);
    if (state.n_bytes != 0) by.CmdPushConstants(command, state.layout, state.stages, 0, state.n_bytes, state.constants.data());
}

uint64_t CommandList::flush(VkCommandBuffer command, const DeviceTable& by) {
    for (auto kept = kept_.rbegin(); kept != kept_.rend(); ++kept) {
        set(command, by, kept->first);
        kept->second(command, by);
    }
    const bool reordered = kept_.size() > 1;
    // What follows relies on the state that it has set itself.
    if (!kept_.empty()) set(command, by, state_);
    kept_.clear();
    return reordered ? 1 : 0;
}

}  // namespace lorad::testing::fault
