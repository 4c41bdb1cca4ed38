#include "model/step/batch_traits.h"

#include <algorithm>

#include "model/step/step_shape.h"
#include "model/weights/stacked_columns.h"
#include "proto/base/rounding.h"

namespace lorad::model {
namespace {

constexpr uint32_t kRowsPerLongRun = 32;

// Rows with adapters, and the runs that they form; in all and in the rows that gated_act_matrix takes together.
class AdapterRuns {
  public:
    void add(uint32_t row, uint32_t slot) {
        const bool starts_tile = row % gpu::kAdapterTileRows == 0;
        if (starts_tile) n_tile_runs_ = 0;
        if (slot != kNoAdapterSlot) {
            ++n_rows_;
            if (slot != last_) ++n_runs_;
            if (starts_tile || slot != last_) most_ = std::max(most_, ++n_tile_runs_);
        }
        last_ = slot;
    }
    bool are_long() const { return n_rows_ > 0 && n_rows_ >= n_runs_ * kRowsPerLongRun; }
    uint32_t most() const { return most_; }

  private:
    uint32_t last_ = kNoAdapterSlot, n_rows_ = 0, n_runs_ = 0, n_tile_runs_ = 0, most_ = 0;
};

void scan_rows(const StepBatch& batch, const TraitsWish& wish, BatchTraits& traits) {
    const std::span<const BatchRow> rows = batch.rows();
    AdapterRuns adapters;
    traits.has_lone_rows = true;
    for (uint32_t i = 0; i < rows.size(); ++i) {
        traits.n_context = std::max(traits.n_context, rows[i].position + 1);
        if (i > 0 && rows[i].table_begin == rows[i - 1].table_begin) traits.has_lone_rows = false;
        adapters.add(i, rows[i].adapter_slot);
    }
    traits.has_long_runs = adapters.are_long();
    traits.most_runs = adapters.most();
    if (wish.tile_rows == 0) return;
    for_each_run(batch, [&](uint32_t begin, uint32_t end) {
        if (end - begin < kTileRowsMin)
            traits.runs.n_single_rows += end - begin;
        else
            traits.runs.n_tiles += ceil_div(end - begin, wish.tile_rows);
    });
}

void scan_adapters(const StepBatch& batch, const SlotLookup& slots, BatchTraits& traits) {
    bool all_plain = batch.has_single_uses_only();
    for (const LoraUse& use : batch.lora_uses()) {
        const SlotTraits& adapter = slots(use.slot);
        traits.rank_max = std::max(traits.rank_max, std::ranges::max(adapter.ranks));
        traits.types |= adapter.types;
        traits.has_extras = traits.has_extras || adapter.has_extras;
        all_plain = all_plain && adapter.is_plain;
    }
    if (!batch.has_lora() || batch.is_merged()) return;
    traits.lora = all_plain ? gpu::LoraLevel::kPlain : gpu::LoraLevel::kFull;
}

void scan_outputs(const StepBatch& batch, BatchTraits& traits) {
    traits.wants_logits = std::ranges::any_of(batch.outputs(), &OutputRow::want_logits);
    traits.has_rules = !batch.choices().empty();
    for (const gpu::ChoiceRule& rule : batch.choices()) {
        traits.has_changes = traits.has_changes || (rule.what & gpu::kRuleAdjusts) != 0;
        traits.has_logprobs = traits.has_logprobs || (rule.what & gpu::kRuleLogprobs) != 0;
    }
}

}  // namespace

BatchTraits traits_of(const StepBatch& batch, const SlotLookup& slots, const TraitsWish& wish) {
    BatchTraits traits{.n_rows = batch.n_rows(),
                       .n_outputs = batch.n_outputs(),
                       .n_masks = batch.n_masks(),
                       .is_merged = batch.is_merged()};
    scan_rows(batch, wish, traits);
    scan_adapters(batch, slots, traits);
    scan_outputs(batch, traits);
    if (wish.stacked_type && traits.lora == gpu::LoraLevel::kPlain && !traits.has_extras) {
        if (const auto columns = StackedColumns::of(batch, slots, *wish.stacked_type)) {
            traits.stacked_steps.emplace();
            for (uint32_t group = 0; group < gpu::kLoraGroups; ++group)
                (*traits.stacked_steps)[group] = columns->mean_steps(group);
        }
    }
    return traits;
}

std::array<uint32_t, kModuleGroups> largest_ranks(const StepBatch& batch, const SlotLookup& slots) {
    std::array<uint32_t, kModuleGroups> largest{};
    for (const LoraUse& use : batch.lora_uses()) {
        const SlotTraits& traits = slots(use.slot);
        for (size_t group = 0; group < largest.size(); ++group)
            largest[group] = std::max(largest[group], traits.ranks[group]);
    }
    return largest;
}

}  // namespace lorad::model
