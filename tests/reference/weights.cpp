#include "tests/reference/weights.h"

#include <cmath>

namespace lorad::reference {
namespace {

double delta(const LoraPair& pair, size_t n, size_t i, size_t k) {
    double sum = 0;
    for (size_t r = 0; r < pair.rank; r++) sum += static_cast<double>(pair.b[n * pair.rank + r]) * pair.a[r * k + i];
    return pair.scale * sum;
}

}  // namespace

Vector merged(std::span<const float> w, size_t k, std::span<const MergeTerm> terms) {
    Vector out = to_doubles(w);
    for (size_t n = 0; n < w.size() / k; n++) {
        for (const MergeTerm& term : terms) {
            double gain = term.gain.empty() ? 1.0 : term.gain[n];
            for (size_t i = 0; i < k; i++) {
                out[n * k + i] += term.factor * ((gain - 1) * w[n * k + i] + gain * delta(term.pair, n, i, k));
            }
        }
    }
    return out;
}

Vector merged_bias(std::span<const float> bias, size_t n, std::span<const MergeTerm> terms) {
    Vector out = bias.empty() ? Vector(n) : to_doubles(bias);
    for (const MergeTerm& term : terms) {
        for (size_t i = 0; i < term.bias.size(); i++) out[i] += term.factor * term.bias[i];
    }
    return out;
}

Vector gains(std::span<const float> magnitude, std::span<const float> w, size_t k, const LoraPair& pair) {
    Vector out(magnitude.size());
    for (size_t n = 0; n < out.size(); n++) {
        double squares = 0;
        for (size_t i = 0; i < k; i++) {
            double value = w[n * k + i] + delta(pair, n, i, k);
            squares += value * value;
        }
        out[n] = squares == 0 ? 0 : magnitude[n] / std::sqrt(squares);
    }
    return out;
}

}  // namespace lorad::reference
