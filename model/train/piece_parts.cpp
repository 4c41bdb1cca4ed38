#include "model/train/piece_parts.h"

#include <algorithm>
#include <numeric>

namespace lorad::model {

bool PieceParts::record_some(gpu::Recorder& recorder, const Record& record, PieceKind kind, double guessed_us,
                             double us_max, double& us) {
    std::vector<double>& stretches = stretch_us_[static_cast<size_t>(kind)];
    const auto guess = [&](const std::vector<double>& costs) {
        const double factor = guessed_us / std::accumulate(costs.begin(), costs.end(), 0.0);
        stretches.clear();
        for (const double cost : costs) stretches.push_back(cost * factor);
    };
    if (stretches.empty()) {
        recorder.begin_part(0, 0);
        record(recorder);
        guess(recorder.end_part());
    }
    uint32_t end = cut_;
    while (end < stretches.size() && (us == 0 || us + stretches[end] <= us_max)) us += stretches[end++];
    if (end == cut_ && end < stretches.size()) return false;
    end = std::max(end, cut_ + 1);  // of one that is longer than those of its kind before
    recorder.begin_part(cut_, end);
    record(recorder);
    const std::vector<double> costs = recorder.end_part();
    if (costs.size() != stretches.size()) guess(costs);  // of a micro-batch that is computed otherwise
    end = std::min(end, static_cast<uint32_t>(costs.size()));
    recorded_.push_back({kind, cut_, end});
    cut_ = end;
    if (end < costs.size()) return false;
    cut_ = 0;
    return true;
}

void PieceParts::learn(double us) {
    constexpr double kLearned = 0.5, kFactorMax = 4.0;
    double guessed_us = 0;
    for (const auto& [kind, from, to] : recorded_) {
        const std::vector<double>& stretches = stretch_us_[static_cast<size_t>(kind)];
        for (uint32_t i = from; i < std::min<size_t>(to, stretches.size()); ++i) guessed_us += stretches[i];
    }
    if (us > 0 && guessed_us > 0) {
        const double factor = 1 + kLearned * (std::clamp(us / guessed_us, 1 / kFactorMax, kFactorMax) - 1);
        for (const auto& [kind, from, to] : recorded_) {
            std::vector<double>& stretches = stretch_us_[static_cast<size_t>(kind)];
            for (uint32_t i = from; i < std::min<size_t>(to, stretches.size()); ++i) stretches[i] *= factor;
        }
    }
    recorded_.clear();
}

void PieceParts::abandon() {
    cut_ = 0;
    recorded_.clear();
}

}  // namespace lorad::model
