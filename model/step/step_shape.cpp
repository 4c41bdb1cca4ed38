#include "model/step/step_shape.h"

#include <bit>

#include "proto/base/ids.h"
#include "proto/base/rounding.h"

namespace lorad::model {

namespace {

// Rows with a header of their own.
uint32_t kept_max(const StepShape& shape) {
    return StepLayout::may_keep_rows(shape) && shape.lora == gpu::LoraLevel::kPlain ? shape.output_bucket : 0;
}

}  // namespace

uint32_t bucket_for(uint32_t n) {
    if (n <= 2) return n;
    const uint32_t power = std::bit_ceil(n);
    return n <= power / 4 * 3 ? power / 4 * 3 : power;
}

std::vector<uint32_t> buckets_up_to(uint32_t n) {
    std::vector<uint32_t> buckets;
    for (uint32_t bucket = 0; bucket < bucket_for(n);) buckets.push_back(bucket = bucket_for(bucket + 1));
    return buckets;
}

StepLayout::StepLayout(const StepShape& shape)
    : rows(sizeof(gpu::StepHeader)),
      logit_rows(rows + uint64_t{shape.row_bucket} * sizeof(gpu::StepRow)),
      rules(logit_rows + uint64_t{shape.output_bucket} * sizeof(gpu::LogitRow)),
      segments(round_up(rules + uint64_t{shape.rules ? shape.output_bucket : 0} * sizeof(gpu::ChoiceRule), 16)),
      uses(segments + uint64_t{segments_max(shape)} * sizeof(gpu::LoraSegment)),
      kept(uses + uint64_t{uses_max(shape)} * sizeof(gpu::StepUse)),
      kept_segments(kept + (kept_max(shape) > 0 ? sizeof(gpu::StepHeader) : 0) +
                    uint64_t{kept_max(shape)} * sizeof(gpu::StepRow)),
      stacked(kept_segments + uint64_t{kept_max(shape)} * sizeof(gpu::LoraSegment)),
      stacked_windows(stacked + uint64_t{shape.is_stacked() ? gpu::kLoraGroups : 0} * sizeof(gpu::StackedGroup)),
      tiles(stacked_windows + uint64_t{stacked_tiles(shape)} * gpu::kLoraGroups * sizeof(gpu::StackedWindow)),
      single_rows(tiles + uint64_t{tiles_max(shape)} * sizeof(gpu::AttentionTile)),
      state_runs(round_up(single_rows + uint64_t{shape.single_bucket} * sizeof(uint32_t), 16)),
      window_header(round_up(state_runs + uint64_t{shape.state_runs} * sizeof(gpu::StateRun), 16)),
      block_tables(window_header + (shape.window_rows
                                        ? sizeof(gpu::StepHeader) + uint64_t{shape.row_bucket} * sizeof(gpu::StepRow)
                                        : 0)),
      n_stacked_tiles(stacked_tiles(shape)) {}

bool StepLayout::may_keep_rows(const StepShape& shape) {
    return shape.output_bucket > 0 && 2 * shape.output_bucket <= shape.row_bucket &&
           shape.lora != gpu::LoraLevel::kFull && !shape.extras;
}

uint32_t StepLayout::stacked_tiles(const StepShape& shape) {
    return shape.is_stacked() ? ceil_div(shape.row_bucket, gpu::kStackedTileRows) : 0;
}

uint32_t StepLayout::tiles_max(const StepShape& shape) {
    return shape.tiles ? ceil_div(shape.row_bucket, kTileRowsMin) : 0;
}

uint32_t StepLayout::segments_max(const StepShape& shape) {
    if (shape.lora == gpu::LoraLevel::kNone) return 0;
    return shape.row_bucket * (shape.lora == gpu::LoraLevel::kFull ? kLoraUsesMax : 1);
}

uint32_t StepLayout::uses_max(const StepShape& shape) {
    return shape.lora == gpu::LoraLevel::kFull || shape.extras ? shape.row_bucket * kLoraUsesMax : 0;
}

}  // namespace lorad::model
