// Shared by the benchmarks: medians with spread, and giving up loudly on an error.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "proto/base/result.h"

namespace lorad::bench {

struct Summary {
    double median = 0, p10 = 0, p90 = 0;
};

// Quantiles by linear interpolation between the two nearest values, as bench/stats.py computes them.
inline double quantile(const std::vector<double>& sorted, double share) {
    CHECK(!sorted.empty());
    const double at = share * static_cast<double>(sorted.size() - 1);
    const auto below = static_cast<size_t>(at);
    const size_t above = std::min(below + 1, sorted.size() - 1);
    return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

inline Summary summarize(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return {quantile(values, 0.5), quantile(values, 0.1), quantile(values, 0.9)};
}

template <typename T>
T must(Result<T> result) {
    if (!result.ok()) {
        std::fprintf(stderr, "lorad-bench stopped: %s\n", result.error().message.c_str());
        std::exit(1);
    }
    return std::move(result).value();
}

inline void stop_on_error(const Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "lorad-bench stopped: %s\n", status.error().message.c_str());
    std::exit(1);
}

}  // namespace lorad::bench
