#include "model/train/piece_parts.h"

#include <numeric>

namespace lorad::model {

bool PieceParts::record_some(gpu::Recorder& recorder, const Record& record, double piece_flops, double flops_max,
                             double& flops) {
    if (costs_.empty()) {
        recorder.begin_part(0, 0);
        record(recorder);
        costs_ = recorder.end_part();
    }
    const double flops_of_cost = piece_flops / std::accumulate(costs_.begin(), costs_.end(), 0.0);
    uint32_t end = cut_;
    while (end < costs_.size()) {
        const double next = costs_[end] * flops_of_cost;
        if (flops > 0 && flops + next > flops_max) break;
        flops += next;
        ++end;
    }
    if (end == cut_) return false;
    recorder.begin_part(cut_, end);
    record(recorder);
    recorder.end_part();
    cut_ = end;
    if (end < costs_.size()) return false;
    abandon();
    return true;
}

void PieceParts::abandon() {
    cut_ = 0;
    costs_.clear();
}

}  // namespace lorad::model
