#include "model/step_state.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "proto/base/check.h"

namespace lorad::model {
namespace {

static_assert(gpu::kStepUsesMax == kLoraUsesMax);

template <typename T>
void put(std::span<std::byte> to, uint64_t offset, const T* from, size_t n) {
    CHECK(offset + n * sizeof(T) <= to.size());
    std::memcpy(to.data() + offset, from, n * sizeof(T));
}

gpu::StepRow device_row(const StepBatch& batch, const BatchRow& row, const SlotLookup& slots) {
    const uint32_t block_idx = row.position / kBlockTokens;
    CHECK(block_idx < row.n_blocks);
    const BlockId block = batch.block_tables()[row.table_begin + block_idx];
    gpu::StepRow to{};
    to.token = row.token;
    to.position = row.position;
    to.kv_slot = block * kBlockTokens + row.position % kBlockTokens;
    to.block_table = row.table_begin;
    to.adapter_slot = row.adapter_slot;
    to.use_begin = row.use_begin;
    to.n_uses = row.n_uses;
    to.extras_slot = row.n_uses == 1 && slots(row.adapter_slot).has_extras ? row.adapter_slot : kNoAdapterSlot;
    return to;
}

// Cuts the rows into runs with one list of uses, writes for each the list and the segments, and sets the header's count and
// grids.
class LoraWriter {
  public:
    LoraWriter(const StepBatch& batch, const StepShape& shape, const SlotLookup& slots, std::span<std::byte> to)
        : batch_(batch), shape_(shape), layout_(shape), slots_(slots), to_(to) {}

    void write(gpu::StepHeader& header) {
        const std::span<const BatchRow> rows = batch_.rows();
        for (uint32_t begin = 0, end = 0; begin < rows.size(); begin = end) {
            const auto same = [&](const BatchRow& row) {
                return row.n_uses == rows[begin].n_uses && (row.n_uses == 0 || row.use_begin == rows[begin].use_begin);
            };
            while (end < rows.size() && same(rows[end])) ++end;
            put_run(begin, end);
        }
        header.n_segments = n_segments_;
        constexpr uint32_t kGroupModules[] = {3, 1, 2, 1};
        for (size_t group = 0; group < max_ranks_.size(); ++group) {
            const gpu::ShrinkGrid grid = gpu::shrink_grid(max_ranks_[group], n_segments_, kGroupModules[group]);
            header.shrink_grid[group][0] = grid.x;
            header.shrink_grid[group][1] = grid.y;
            header.shrink_grid[group][2] = grid.z;
        }
    }

  private:
    void put_run(uint32_t begin, uint32_t end) {
        const BatchRow& first = batch_.rows()[begin];
        const bool is_full = shape_.lora == gpu::LoraLevel::kFull;
        // The kernels of the plain level look for the result of row t in row t.
        if (!is_full) n_low_rows_ = begin;
        for (uint32_t i = 0; i < first.n_uses; ++i) {
            const LoraUse& use = batch_.lora_uses()[first.use_begin + i];
            if (is_full) {
                const gpu::StepUse entry{use.slot, use.scale, n_low_rows_ - begin, 0};
                put(to_, layout_.uses + (first.use_begin + i) * sizeof(entry), &entry, 1);
            }
            put_segments(begin, end, use.slot);
            const SlotTraits& traits = slots_(use.slot);
            for (size_t group = 0; group < max_ranks_.size(); ++group) {
                max_ranks_[group] = std::max(max_ranks_[group], traits.ranks[group]);
            }
        }
    }

    void put_segments(uint32_t begin, uint32_t end, uint32_t slot) {
        for (uint32_t row = begin; row < end; row += gpu::kMaxSegmentRows) {
            const uint32_t n_rows = std::min(end - row, gpu::kMaxSegmentRows);
            const gpu::LoraSegment segment{row, n_rows, slot, n_low_rows_};
            CHECK(n_segments_ < StepLayout::segments_max(shape_));
            put(to_, layout_.segments + n_segments_ * sizeof(segment), &segment, 1);
            ++n_segments_;
            n_low_rows_ += n_rows;
        }
    }

    const StepBatch& batch_;
    const StepShape& shape_;
    const StepLayout layout_;
    const SlotLookup& slots_;
    const std::span<std::byte> to_;
    uint32_t n_segments_ = 0;
    uint32_t n_low_rows_ = 0;
    std::array<uint32_t, 4> max_ranks_{};
};

}  // namespace

gpu::LoraLevel lora_level(const StepBatch& batch, const SlotLookup& slots) {
    if (!batch.has_lora()) return gpu::LoraLevel::kNone;
    const auto is_plain = [&](const LoraUse& use) { return slots(use.slot).is_plain; };
    return batch.has_single_uses_only() && std::ranges::all_of(batch.lora_uses(), is_plain) ? gpu::LoraLevel::kPlain
                                                                                            : gpu::LoraLevel::kFull;
}

bool has_extras(const StepBatch& batch, const SlotLookup& slots) {
    return std::ranges::any_of(batch.lora_uses(), [&](const LoraUse& use) { return slots(use.slot).has_extras; });
}

uint64_t step_state_bytes(const StepBatch& batch, const StepShape& shape) {
    return StepLayout(shape).block_tables + batch.block_tables().size() * sizeof(BlockId);
}

void write_step_state(const StepBatch& batch, const StepShape& shape, const SlotLookup& slots, uint32_t readback_begin,
                      std::span<std::byte> to) {
    const StepLayout layout(shape);
    CHECK(batch.n_rows() <= shape.row_bucket && batch.n_outputs() <= shape.output_bucket);
    gpu::StepHeader header{};
    header.n_rows = batch.n_rows();
    header.n_logit_rows = batch.n_outputs();
    for (uint32_t i = 0; i < batch.n_rows(); ++i) {
        const gpu::StepRow row = device_row(batch, batch.rows()[i], slots);
        put(to, layout.rows + i * sizeof(row), &row, 1);
    }
    for (uint32_t i = 0; i < batch.n_outputs(); ++i) {
        const OutputRow& output = batch.outputs()[i];
        const gpu::LogitRow row{output.row, output.want_logits ? readback_begin + i : gpu::kNoReadback};
        put(to, layout.logit_rows + i * sizeof(row), &row, 1);
    }
    if (shape.lora != gpu::LoraLevel::kNone) {
        LoraWriter(batch, shape, slots, to).write(header);
    } else if (shape.extras) {
        // The linear modules are merged; embedding and output layer still ask for the uses.
        for (uint32_t i = 0; i < batch.lora_uses().size(); ++i) {
            const gpu::StepUse entry{batch.lora_uses()[i].slot, batch.lora_uses()[i].scale, 0, 0};
            put(to, layout.uses + i * sizeof(entry), &entry, 1);
        }
    }
    put(to, layout.block_tables, batch.block_tables().data(), batch.block_tables().size());
    put(to, 0, &header, 1);
}

}  // namespace lorad::model
