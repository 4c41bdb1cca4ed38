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

inline Summary summarize(std::vector<double> values) {
    CHECK(!values.empty());
    std::sort(values.begin(), values.end());
    const auto at = [&](double share) { return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))]; };
    return {at(0.5), at(0.1), at(0.9)};
}

template <typename T>
T must(Result<T> result) {
    if (!result.ok()) {
        std::fprintf(stderr, "benchmark stopped: %s\n", result.error().message.c_str());
        std::exit(1);
    }
    return std::move(result).value();
}

}  // namespace lorad::bench
