#include "model/train/piece_parts.h"

#include <algorithm>
#include <numeric>

#include "proto/base/check.h"

namespace lorad::model {

bool PieceParts::record_some(gpu::Recorder& recorder, const Piece& piece, double us_max, double& us) {
    CHECK(piece.flops > 0);
    std::vector<double>& known = stretches(piece.kind);
    const auto guess = [&](const std::vector<double>& costs) {
        const double sum = std::accumulate(costs.begin(), costs.end(), 0.0);
        known.clear();
        for (const double cost : costs) known.push_back(cost / sum * piece.guessed_us / piece.flops);
    };
    if (known.empty()) {
        recorder.begin_part(0, 0);
        piece.record(recorder);
        guess(recorder.end_part());
    }
    uint32_t end = cut_;
    while (end < known.size() && (us == 0 || us + known[end] * piece.flops <= us_max)) us += known[end++] * piece.flops;
    if (end == cut_ && end < known.size()) return false;
    end = std::max(end, cut_ + 1);  // of one with more stretches than those of its kind before
    recorder.begin_part(cut_, end);
    piece.record(recorder);
    const std::vector<double> costs = recorder.end_part();
    if (costs.size() != known.size()) guess(costs);  // it is computed otherwise
    end = std::min(end, static_cast<uint32_t>(costs.size()));
    recorded_.push_back({piece.kind, cut_, end, piece.flops});
    cut_ = end < costs.size() ? end : 0;
    return cut_ == 0;
}

void PieceParts::learn(double us) {
    constexpr double kLearned = 0.5, kFactorMax = 4.0;
    const auto for_each = [&](const auto& visit) {
        for (const Recorded& one : recorded_) {
            std::vector<double>& known = stretches(one.kind);
            for (uint32_t i = one.from; i < std::min<size_t>(one.to, known.size()); ++i) visit(known[i], one.flops);
        }
    };
    double guessed_us = 0;
    for_each([&](double stretch, double flops) { guessed_us += stretch * flops; });
    if (us > 0 && guessed_us > 0) {
        const double factor = 1 + kLearned * (std::clamp(us / guessed_us, 1 / kFactorMax, kFactorMax) - 1);
        for_each([&](double& stretch, double) { stretch *= factor; });
    }
    recorded_.clear();
}

void PieceParts::abandon() {
    cut_ = 0;
    recorded_.clear();
}

}  // namespace lorad::model
