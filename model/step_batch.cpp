#include "model/step_batch.h"

#include "proto/base/check.h"

namespace lorad::model {

void StepBatch::clear() {
    rows_.clear();
    outputs_.clear();
    block_tables_.clear();
    has_lora_ = false;
}

uint32_t StepBatch::add_rows(std::span<const TokenId> tokens, uint32_t first_position, std::span<const BlockId> blocks,
                             uint32_t adapter_slot) {
    CHECK(!tokens.empty());
    const uint32_t first_row = n_rows();
    BatchRow row;
    row.table_begin = static_cast<uint32_t>(block_tables_.size());
    row.n_blocks = static_cast<uint32_t>(blocks.size());
    row.adapter_slot = adapter_slot;
    row.position = first_position;
    for (const TokenId token : tokens) {
        row.token = token;
        rows_.push_back(row);
        ++row.position;
    }
    block_tables_.insert(block_tables_.end(), blocks.begin(), blocks.end());
    has_lora_ = has_lora_ || adapter_slot != kNoAdapterSlot;
    return first_row;
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

}  // namespace lorad::model
