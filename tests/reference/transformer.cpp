#include "tests/reference/transformer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lorad::reference {

Vector to_doubles(std::span<const float> values) { return Vector(values.begin(), values.end()); }

Vector multiply(std::span<const float> w, std::span<const double> x) {
    Vector out(w.size() / x.size());
    // Four sums, none of which waits for another: whole models are computed with this.
    constexpr size_t kSums = 4;
    const size_t whole = x.size() / kSums * kSums;
    for (size_t n = 0; n < out.size(); n++) {
        const float* row = w.data() + n * x.size();
        double sums[kSums] = {};
        for (size_t k = 0; k < whole; k += kSums) {
            for (size_t i = 0; i < kSums; i++) sums[i] += static_cast<double>(row[k + i]) * x[k + i];
        }
        for (size_t k = whole; k < x.size(); k++) sums[0] += static_cast<double>(row[k]) * x[k];
        out[n] = sums[0] + sums[1] + (sums[2] + sums[3]);
    }
    return out;
}

void add_expand(Vector& out, const LoraPair& pair, std::span<const double> low) {
    for (size_t n = 0; n < out.size(); n++) {
        double delta = 0;
        for (size_t r = 0; r < pair.rank; r++) delta += pair.b[n * pair.rank + r] * low[r];
        out[n] += pair.scale * delta;
    }
}

Vector rms_norm(std::span<const double> x, std::span<const float> gamma, double eps) {
    double squares = 0;
    for (double v : x) squares += v * v;
    double inverse = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
    Vector out(x.size());
    for (size_t i = 0; i < x.size(); i++) out[i] = x[i] * inverse * gamma[i];
    return out;
}

void rope(std::span<double> head, size_t rotary_dim, std::span<const float> cos_sin) {
    size_t half = rotary_dim / 2;
    for (size_t i = 0; i < half; i++) {
        double a = head[i];
        double b = head[i + half];
        double c = cos_sin[2 * i];
        double s = cos_sin[2 * i + 1];
        head[i] = a * c - b * s;
        head[i + half] = b * c + a * s;
    }
}

Vector attention(std::span<const float> query, std::span<const float> keys, std::span<const float> values,
                 const AttentionOptions& options) {
    size_t dim = query.size();
    size_t n = keys.size() / dim;
    size_t first = options.window != 0 && n > options.window ? n - options.window : 0;
    Vector scores(n);
    double top = -INFINITY;
    for (size_t i = first; i < n; i++) {
        double dot = 0;
        for (size_t d = 0; d < dim; d++) dot += static_cast<double>(query[d]) * keys[i * dim + d];
        scores[i] = dot * options.scale;
        if (options.softcap != 0) scores[i] = options.softcap * std::tanh(scores[i] / options.softcap);
        top = std::max(top, scores[i]);
    }
    if (options.sink != nullptr) top = std::max(top, static_cast<double>(*options.sink));
    Vector out(dim);
    double total = options.sink != nullptr ? std::exp(*options.sink - top) : 0;
    for (size_t i = first; i < n; i++) {
        double weight = std::exp(scores[i] - top);
        total += weight;
        for (size_t d = 0; d < dim; d++) out[d] += weight * values[i * dim + d];
    }
    for (double& v : out) v /= total;
    return out;
}

double silu(double x) { return x / (1 + std::exp(-x)); }

double gelu_tanh(double x) {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

}  // namespace lorad::reference
