#include "bench/adapter_mix.h"

#include <algorithm>
#include <cmath>

namespace lorad::bench {

Result<Mix> mix_named(const std::string& name) {
    if (name == "identical") return Mix::kIdentical;
    if (name == "distinct") return Mix::kDistinct;
    if (name == "uniform") return Mix::kUniform;
    if (name == "zipf") return Mix::kZipf;
    return make_error(ErrorCode::kInvalidConfig, "mix: expected identical, distinct, uniform or zipf, found " + name);
}

std::vector<uint32_t> row_adapters(Mix mix, uint32_t n_rows, uint32_t n_adapters, uint32_t seed) {
    CHECK(n_adapters > 0);
    std::vector<double> weights(n_adapters, 1.0);
    if (mix == Mix::kZipf) {
        for (uint32_t i = 0; i < n_adapters; ++i) weights[i] = std::pow(i + 1, -1.1);
    }
    std::mt19937 random(seed);
    std::discrete_distribution<uint32_t> draw(weights.begin(), weights.end());
    std::vector<uint32_t> rows(n_rows);
    for (uint32_t i = 0; i < n_rows; ++i)
        rows[i] = mix == Mix::kIdentical ? 0 : mix == Mix::kDistinct ? i % n_adapters : draw(random);
    std::sort(rows.begin(), rows.end());
    return rows;
}

}  // namespace lorad::bench
