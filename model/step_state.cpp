#include "model/step_state.h"

#include <algorithm>
#include <cstring>

#include "proto/base/check.h"

namespace lorad::model {
namespace {

template <typename T>
void put(std::span<std::byte> to, uint64_t offset, const T* from, size_t n) {
    CHECK(offset + n * sizeof(T) <= to.size());
    std::memcpy(to.data() + offset, from, n * sizeof(T));
}

gpu::StepRow device_row(const StepBatch& batch, const BatchRow& row) {
    const uint32_t block_idx = row.position / kBlockTokens;
    CHECK(block_idx < row.n_blocks);
    const BlockId block = batch.block_tables()[row.table_begin + block_idx];
    gpu::StepRow to{};
    to.token = row.token;
    to.position = row.position;
    to.kv_slot = block * kBlockTokens + row.position % kBlockTokens;
    to.block_table = row.table_begin;
    to.adapter_slot = row.adapter_slot;
    return to;
}

// Writes the runs of rows with one adapter, in pieces of kMaxSegmentRows, and sets the header's count and grids.
void put_segments(std::span<const BatchRow> rows, const SlotRanks& ranks, uint64_t offset, gpu::StepHeader& header,
                  std::span<std::byte> to) {
    std::array<uint32_t, 4> max_ranks{};
    uint32_t begin = 0;
    while (begin < rows.size()) {
        const uint32_t slot = rows[begin].adapter_slot;
        uint32_t end = begin + 1;
        while (end < rows.size() && rows[end].adapter_slot == slot && end - begin < gpu::kMaxSegmentRows) ++end;
        if (slot != kNoAdapterSlot) {
            const gpu::LoraSegment segment{begin, end - begin, slot, 0};
            put(to, offset + header.n_segments * sizeof(segment), &segment, 1);
            ++header.n_segments;
            const auto slot_ranks = ranks(slot);
            for (size_t group = 0; group < max_ranks.size(); ++group) {
                max_ranks[group] = std::max(max_ranks[group], slot_ranks[group]);
            }
        }
        begin = end;
    }
    constexpr uint32_t kGroupModules[] = {3, 1, 2, 1};
    for (size_t group = 0; group < max_ranks.size(); ++group) {
        const gpu::ShrinkGrid grid = gpu::shrink_grid(max_ranks[group], header.n_segments, kGroupModules[group]);
        header.shrink_grid[group][0] = grid.x;
        header.shrink_grid[group][1] = grid.y;
        header.shrink_grid[group][2] = grid.z;
    }
}

}  // namespace

uint64_t step_state_bytes(const StepBatch& batch, const StepShape& shape) {
    return StepLayout(shape).block_tables + batch.block_tables().size() * sizeof(BlockId);
}

void write_step_state(const StepBatch& batch, const StepShape& shape, const SlotRanks& ranks, uint32_t readback_begin,
                      std::span<std::byte> to) {
    const StepLayout layout(shape);
    CHECK(batch.n_rows() <= shape.row_bucket && batch.n_outputs() <= shape.output_bucket);
    gpu::StepHeader header{};
    header.n_rows = batch.n_rows();
    header.n_logit_rows = batch.n_outputs();
    for (uint32_t i = 0; i < batch.n_rows(); ++i) {
        const gpu::StepRow row = device_row(batch, batch.rows()[i]);
        put(to, layout.rows + i * sizeof(row), &row, 1);
    }
    for (uint32_t i = 0; i < batch.n_outputs(); ++i) {
        const OutputRow& output = batch.outputs()[i];
        const gpu::LogitRow row{output.row, output.want_logits ? readback_begin + i : gpu::kNoReadback};
        put(to, layout.logit_rows + i * sizeof(row), &row, 1);
    }
    if (shape.with_lora) put_segments(batch.rows(), ranks, layout.segments, header, to);
    put(to, layout.block_tables, batch.block_tables().data(), batch.block_tables().size());
    put(to, 0, &header, 1);
}

}  // namespace lorad::model
