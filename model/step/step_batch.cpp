#include "model/step/step_batch.h"

#include <algorithm>

#include "proto/base/check.h"

namespace lorad::model {

void StepBatch::clear() {
    rows_.clear();
    outputs_.clear();
    choices_.clear();
    choice_changes_.clear();
    choice_allowed_.clear();
    block_tables_.clear();
    lora_uses_.clear();
    state_runs_.clear();
    last_list_ = 0;
    n_masks_ = 0;
    single_uses_only_ = true;
    merged_ = false;
}

// The place of the list in lora_uses_; it is appended unless the row before has the same one.
uint32_t StepBatch::list_of(std::span<const LoraUse> uses) {
    if (std::ranges::equal(uses, std::span(lora_uses_).subspan(last_list_))) return last_list_;
    last_list_ = static_cast<uint32_t>(lora_uses_.size());
    for (const LoraUse& use : uses) {
        CHECK(use.slot != kNoAdapterSlot && use.scale != 0.0f);
        single_uses_only_ = single_uses_only_ && uses.size() == 1 && use.scale == 1.0f;
        lora_uses_.push_back(use);
    }
    return last_list_;
}

uint32_t StepBatch::add_rows(std::span<const TokenId> tokens, uint32_t first_position, std::span<const BlockId> blocks,
                             const RowAdapters& adapters) {
    CHECK(!tokens.empty() && adapters.uses.size() <= kLoraUsesMax);
    const uint32_t first_row = n_rows();
    const bool any_adapted = !adapters.uses.empty() && first_position + tokens.size() > adapters.from_position;
    const uint32_t list = any_adapted ? list_of(adapters.uses) : 0;
    BatchRow row;
    row.table_begin = static_cast<uint32_t>(block_tables_.size());
    row.n_blocks = static_cast<uint32_t>(blocks.size());
    CHECK(adapters.window_blocks.empty() || adapters.window_blocks.size() == blocks.size());
    row.window_begin = row.table_begin + (adapters.window_blocks.empty() ? 0 : row.n_blocks);
    row.position = first_position;
    row.rope_begin = adapters.rope_begin;
    row.state_run = static_cast<uint32_t>(state_runs_.size());
    const uint32_t slot = adapters.state_slot != gpu::kNoState ? adapters.state_slot : row.state_run;
    const uint32_t from = adapters.state_from != gpu::kNoState ? adapters.state_from : slot;
    gpu::StateRun& run = state_runs_.emplace_back(gpu::StateRun{
        first_row, static_cast<uint32_t>(tokens.size()), first_position == 0 ? gpu::kNoState : from, slot, {}});
    CHECK(adapters.state_saves.size() <= gpu::kStateSaves);
    std::ranges::copy(adapters.state_saves, run.saves);
    for (const TokenId token : tokens) {
        row.token = token;
        if (any_adapted && row.position >= adapters.from_position) {
            row.use_begin = list;
            row.n_uses = static_cast<uint32_t>(adapters.uses.size());
            row.adapter_slot = adapters.uses.front().slot;
        }
        rows_.push_back(row);
        ++row.position;
    }
    block_tables_.insert(block_tables_.end(), blocks.begin(), blocks.end());
    block_tables_.insert(block_tables_.end(), adapters.window_blocks.begin(), adapters.window_blocks.end());
    return first_row;
}

uint32_t StepBatch::add_rows(std::span<const TokenId> tokens, uint32_t first_position, std::span<const BlockId> blocks,
                             uint32_t adapter_slot) {
    const LoraUse use{adapter_slot, 1.0f};
    return add_rows(tokens, first_position, blocks, RowAdapters{{&use, adapter_slot == kNoAdapterSlot ? 0u : 1u}});
}

uint32_t StepBatch::add_fed_back_row(uint32_t output, uint32_t position, std::span<const BlockId> blocks,
                                     const RowAdapters& adapters) {
    const TokenId token = ~static_cast<int32_t>(output);
    return add_rows({&token, 1}, position, blocks, adapters);
}

uint32_t StepBatch::add_fed_back_row(uint32_t output, uint32_t position, std::span<const BlockId> blocks,
                                     uint32_t adapter_slot) {
    const TokenId token = ~static_cast<int32_t>(output);
    return add_rows({&token, 1}, position, blocks, adapter_slot);
}

uint32_t StepBatch::add_output(uint32_t row, bool want_logits) {
    CHECK(row < n_rows());
    outputs_.push_back({row, want_logits});
    return n_outputs() - 1;
}

uint32_t StepBatch::add_output(uint32_t row, const gpu::ChoiceRule& rule, std::span<const gpu::TokenChange> changes,
                               std::span<const TokenId> allowed) {
    CHECK(changes.size() <= kChoiceListMax && allowed.size() <= kChoiceListMax);
    const uint32_t output = add_output(row, false);
    outputs_.back().choice = static_cast<int32_t>(choices_.size());
    gpu::ChoiceRule& added = choices_.emplace_back(rule);
    added.change_begin = static_cast<uint32_t>(choice_changes_.size());
    added.n_changes = static_cast<uint32_t>(changes.size());
    added.allowed_begin = static_cast<uint32_t>(choice_allowed_.size());
    added.n_allowed = static_cast<uint32_t>(allowed.size());
    if ((rule.what & gpu::kRuleMasked) != 0) added.mask = n_masks_++;
    choice_changes_.insert(choice_changes_.end(), changes.begin(), changes.end());
    choice_allowed_.insert(choice_allowed_.end(), allowed.begin(), allowed.end());
    return output;
}

}  // namespace lorad::model
