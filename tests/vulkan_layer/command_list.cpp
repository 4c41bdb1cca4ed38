#include "tests/vulkan_layer/command_list.h"

#include <algorithm>
#include <cstring>

namespace lorad::testing::fault {

void CommandList::begin(Order order, VkCommandBufferUsageFlags usage) {
    order_ = order;
    usage_ = usage;
    state_ = State();
    commands_.clear();
}

void CommandList::bind(VkPipelineBindPoint point, VkPipeline pipeline) {
    state_.point = point;
    state_.pipeline = pipeline;
}

void CommandList::push(VkPipelineLayout layout, VkShaderStageFlags stages, uint32_t offset, uint32_t size,
                       const void* values) {
    state_.layout = layout;
    state_.stages = stages;
    state_.n_bytes = std::max(state_.n_bytes, offset + size);
    std::memcpy(state_.constants.data() + offset, values, size);
}

void CommandList::keep_barrier(uint64_t number, const VkDependencyInfo& info) {
    const auto record = [memory = std::vector(info.pMemoryBarriers, info.pMemoryBarriers + info.memoryBarrierCount)](
                            VkCommandBuffer command, const DeviceTable& by) {
        VkDependencyInfo again{};
        again.sType = VK_STRUCTURE_TYPE_DEPENDENCY_INFO;
        again.memoryBarrierCount = static_cast<uint32_t>(memory.size());
        again.pMemoryBarriers = memory.data();
        by.CmdPipelineBarrier2(command, &again);
    };
    commands_.push_back({State(), record, number});
}

void CommandList::set(VkCommandBuffer command, const DeviceTable& by, const State& state) {
    if (state.pipeline != VK_NULL_HANDLE) by.CmdBindPipeline(command, state.point, state.pipeline);
    if (state.n_bytes != 0)
        by.CmdPushConstants(command, state.layout, state.stages, 0, state.n_bytes, state.constants.data());
}

CommandList::Recorded CommandList::record(VkCommandBuffer command, const DeviceTable& by,
                                          const IsLeftOut& is_left_out) {
    Recorded recorded;
    std::vector<const Command*> piece;
    const auto end_piece = [&] {
        for (auto work = piece.rbegin(); work != piece.rend(); ++work) {
            set(command, by, (*work)->state);
            (*work)->work(command, by);
        }
        recorded.n_reordered += piece.size() > 1 ? 1 : 0;
        piece.clear();
    };
    for (Command& kept : commands_) {
        kept.is_left_out = kept.barrier != 0 && is_left_out(kept.barrier);
        recorded.n_left_out += kept.is_left_out ? 1 : 0;
        if (kept.barrier == 0) piece.push_back(&kept);
        if (kept.barrier == 0 || kept.is_left_out) continue;
        end_piece();
        kept.work(command, by);
    }
    end_piece();
    return recorded;
}

bool CommandList::is_as_recorded(const IsLeftOut& is_left_out) const {
    return std::ranges::all_of(commands_, [&](const Command& kept) {
        return kept.barrier == 0 || kept.is_left_out == is_left_out(kept.barrier);
    });
}

}  // namespace lorad::testing::fault
