#include "model/step/step_state.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include "model/exec/kv_cache.h"
#include "model/weights/stacked_columns.h"
#include "proto/base/check.h"
#include "proto/base/rounding.h"

namespace lorad::model {
namespace {

static_assert(gpu::kStepUsesMax == kLoraUsesMax);

template <typename T>
void put(std::span<std::byte> to, uint64_t offset, const T* from, size_t n) {
    CHECK(offset + n * sizeof(T) <= to.size());
    if (n != 0) std::memcpy(to.data() + offset, from, n * sizeof(T));
}

// Sets where the row's keys and values go, and where its sequence's are.
void set_blocks(const StepBatch& batch, const BatchRow& row, uint32_t table_begin, gpu::StepRow& to) {
    const uint32_t block_idx = row.position / kBlockTokens;
    CHECK(block_idx < row.n_blocks);
    const BlockId block = batch.block_tables()[table_begin + block_idx];
    to.kv_slot = block * kBlockTokens + row.position % kBlockTokens;
    to.set_blocks(table_begin, &batch.block_tables()[table_begin], row.n_blocks);
}

gpu::StepRow device_row(const StepBatch& batch, const BatchRow& row, const SlotLookup& slots) {
    gpu::StepRow to{};
    to.token = row.token;
    to.position = row.position;
    set_blocks(batch, row, row.table_begin, to);
    to.adapter_slot = row.adapter_slot;
    to.use_begin = row.use_begin;
    to.n_uses = row.n_uses;
    to.extras_slot = row.n_uses == 1 && slots(row.adapter_slot).has_extras ? row.adapter_slot : kNoAdapterSlot;
    to.rope_begin = row.rope_begin;
    to.state_run = row.state_run;
    return to;
}

// Byte offsets of the rules' lists, behind the block tables.
struct ListPlaces {
    ListPlaces(const StepBatch& batch, const StepLayout& layout)
        : changes(round_up(layout.block_tables + batch.block_tables().size_bytes(), kListAlign)),
          allowed(changes + batch.choice_changes().size_bytes()),
          end(allowed + batch.choice_allowed().size_bytes()) {}
    uint64_t changes, allowed, end;
};

constexpr uint32_t kFullSegmentsFrom = 128;  // rows of the recording
constexpr uint32_t kShortSegmentRows = 4;    // as many as lora_shrink takes at once

// Cuts the rows into runs with one list of uses, writes for each the list and the segments, and sets the header's count
// and
// grids.
class LoraWriter {
  public:
    LoraWriter(const StepBatch& batch, const StepShape& shape, const SlotLookup& slots, std::span<std::byte> to)
        : batch_(batch), shape_(shape), layout_(shape), slots_(slots), to_(to) {}

    void write(gpu::StepHeader& header) {
        if (shape_.is_stacked()) put_stacked();
        const std::span<const BatchRow> rows = batch_.rows();
        for (uint32_t begin = 0, end = 0; begin < rows.size(); begin = end) {
            const auto same = [&](const BatchRow& row) {
                return row.n_uses == rows[begin].n_uses && (row.n_uses == 0 || row.use_begin == rows[begin].use_begin);
            };
            while (end < rows.size() && same(rows[end])) ++end;
            put_run(begin, end);
        }
        header.n_segments = n_segments_;
        const std::array ranks = largest_ranks(batch_, slots_);
        for (size_t group = 0; group < ranks.size(); ++group) {
            header.shrink[group] = gpu::shrink_dispatch(ranks[group], n_segments_, kModuleRanges[group].n_modules);
        }
        if (layout_.kept_segments > layout_.kept) put_kept(ranks);
    }

  private:
    // The rows with an output as a step of their own (StepLayout::kept).
    void put_kept(const std::array<uint32_t, kModuleGroups>& ranks) {
        const std::span<const OutputRow> outputs = batch_.outputs();
        const uint32_t segment_rows =
            shape_.output_bucket >= kFullSegmentsFrom ? gpu::kMaxSegmentRows : kShortSegmentRows;
        const auto slot_of = [&](uint32_t output) { return batch_.rows()[outputs[output].row].adapter_slot; };
        gpu::StepHeader header{};
        header.n_rows = batch_.n_outputs();
        for (uint32_t begin = 0, end = 0; begin < outputs.size(); begin = end) {
            for (end = begin; end < outputs.size() && end - begin < segment_rows && slot_of(end) == slot_of(begin);
                 ++end) {
                const gpu::StepRow row = device_row(batch_, batch_.rows()[outputs[end].row], slots_);
                put(to_, layout_.kept + sizeof(header) + end * sizeof(row), &row, 1);
            }
            if (slot_of(begin) == kNoAdapterSlot) continue;
            const gpu::LoraSegment segment{begin, end - begin, slot_of(begin), begin};
            put(to_, layout_.kept_segments + header.n_segments++ * sizeof(segment), &segment, 1);
        }
        for (size_t group = 0; group < ranks.size(); ++group)
            header.shrink[group] =
                gpu::shrink_dispatch(ranks[group], header.n_segments, kModuleRanges[group].n_modules);
        put(to_, layout_.kept, &header, 1);
    }

    void put_stacked() {
        stacked_ = StackedColumns::of(batch_, slots_, shape_.stacked_type);
        CHECK(stacked_);
        for (uint32_t group = 0; group < gpu::kLoraGroups; ++group) {
            put(to_, layout_.stacked_of(group), &stacked_->groups()[group], 1);
            put(to_, layout_.windows_of(group), stacked_->windows(group).data(), stacked_->windows(group).size());
        }
    }

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
        }
    }

    void put_segments(uint32_t begin, uint32_t end, uint32_t slot) {
        for (uint32_t row = begin; row < end;) {
            const uint32_t n_rows = std::min(end - row, stacked_ ? segment_rows_ - row % segment_rows_ : segment_rows_);
            const gpu::LoraSegment segment{row, n_rows, slot, stacked_ ? stacked_->number_of(slot) : n_low_rows_};
            CHECK(n_segments_ < StepLayout::segments_max(shape_));
            put(to_, layout_.segments + n_segments_ * sizeof(segment), &segment, 1);
            ++n_segments_;
            n_low_rows_ += n_rows;
            row += n_rows;
        }
    }

    const StepBatch& batch_;
    const StepShape& shape_;
    const StepLayout layout_;
    const SlotLookup& slots_;
    const std::span<std::byte> to_;
    std::optional<StackedColumns> stacked_;
    // One adapter in a step of few rows would otherwise keep only a few workgroups busy; A is read again from the
    // cache.
    const uint32_t segment_rows_ = shape_.row_bucket >= kFullSegmentsFrom ? gpu::kMaxSegmentRows : kShortSegmentRows;
    uint32_t n_segments_ = 0;
    uint32_t n_low_rows_ = 0;
};

// Tiles and single rows. The tiles that see most come first, so that the last to end are short.
void put_tiles(const StepBatch& batch, const StepShape& shape, uint32_t n_q_heads, gpu::StepHeader& header,
               std::span<std::byte> to) {
    const StepLayout layout(shape);
    std::vector<gpu::AttentionTile> tiles;
    std::vector<uint32_t> single_rows;
    for_each_run(batch, [&](uint32_t begin, uint32_t end) {
        for (uint32_t row = begin; row < end;) {
            if (end - begin < kTileRowsMin) {
                single_rows.push_back(row++);
                continue;
            }
            const uint32_t n_rows = std::min(end - row, shape.tile_rows);
            tiles.push_back({row, n_rows});
            row += n_rows;
        }
    });
    std::ranges::stable_sort(tiles, std::greater(),
                             [&](const gpu::AttentionTile& tile) { return batch.rows()[tile.row_begin].position; });
    CHECK(tiles.size() <= StepLayout::tiles_max(shape) && single_rows.size() <= shape.single_bucket);
    header.n_single_rows = static_cast<uint32_t>(single_rows.size());
    header.tile_grid[0] = n_q_heads;
    header.tile_grid[1] = static_cast<uint32_t>(tiles.size());
    header.tile_grid[2] = shape.attention_splits;
    put(to, layout.tiles, tiles.data(), tiles.size());
    put(to, layout.single_rows, single_rows.data(), single_rows.size());
}

}  // namespace

uint64_t step_state_bytes(const StepBatch& batch, const StepShape& shape) {
    return ListPlaces(batch, StepLayout(shape)).end;
}

void write_step_state(const StepBatch& batch, const StepShape& shape, const SlotLookup& slots, uint32_t readback_begin,
                      uint32_t n_q_heads, std::span<std::byte> to) {
    const StepLayout layout(shape);
    CHECK(batch.n_rows() <= shape.row_bucket && batch.n_outputs() <= shape.output_bucket);
    const ListPlaces lists(batch, layout);
    gpu::StepHeader header{};
    header.n_rows = batch.n_rows();
    header.n_logit_rows = batch.n_outputs();
    for (uint32_t i = 0; i < batch.n_rows(); ++i) {
        gpu::StepRow row = device_row(batch, batch.rows()[i], slots);
        put(to, layout.rows + i * sizeof(row), &row, 1);
        if (!shape.window_rows) continue;
        set_blocks(batch, batch.rows()[i], batch.rows()[i].window_begin, row);
        put(to, layout.window_header + sizeof(header) + i * sizeof(row), &row, 1);
    }
    for (uint32_t i = 0; i < batch.n_outputs(); ++i) {
        const OutputRow& output = batch.outputs()[i];
        const gpu::LogitRow row{output.row, output.want_logits ? readback_begin + i : gpu::kNoReadback};
        put(to, layout.logit_rows + i * sizeof(row), &row, 1);
        CHECK(output.choice < 0 || shape.rules);
        if (!shape.rules) continue;
        gpu::ChoiceRule rule =
            output.choice < 0 ? gpu::ChoiceRule{} : batch.choices()[static_cast<size_t>(output.choice)];
        rule.change_begin += static_cast<uint32_t>(lists.changes / sizeof(gpu::TokenChange));
        rule.allowed_begin += static_cast<uint32_t>(lists.allowed / sizeof(TokenId));
        put(to, layout.rules + i * sizeof(rule), &rule, 1);
    }
    put(to, lists.changes, batch.choice_changes().data(), batch.choice_changes().size());
    put(to, lists.allowed, batch.choice_allowed().data(), batch.choice_allowed().size());
    if (shape.lora != gpu::LoraLevel::kNone) {
        LoraWriter(batch, shape, slots, to).write(header);
    } else if (shape.extras) {
        // The linear modules are merged; embedding and output layer still ask for the uses.
        for (uint32_t i = 0; i < batch.lora_uses().size(); ++i) {
            const gpu::StepUse entry{batch.lora_uses()[i].slot, batch.lora_uses()[i].scale, 0, 0};
            put(to, layout.uses + i * sizeof(entry), &entry, 1);
        }
    }
    if (shape.tiles) put_tiles(batch, shape, n_q_heads, header, to);
    if (shape.state_runs > 0) {
        CHECK(batch.state_runs().size() <= shape.state_runs);
        header.n_state_runs = static_cast<uint32_t>(batch.state_runs().size());
        put(to, layout.state_runs, batch.state_runs().data(), batch.state_runs().size());
    }
    put(to, layout.block_tables, batch.block_tables().data(), batch.block_tables().size());
    put(to, 0, &header, 1);
    if (shape.window_rows) put(to, layout.window_header, &header, 1);
}

}  // namespace lorad::model
