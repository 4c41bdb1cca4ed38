// The operations of a decoder layer in double precision, one row at a time, written for clarity.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lorad::reference {

using Vector = std::vector<double>;

// One adapter's pair for one module: a [rank][k], b [n][rank], both dense.
struct LoraPair {
    std::span<const float> a, b;
    size_t rank = 0;
    double scale = 0;
};

Vector to_doubles(std::span<const float> values);

// out[n] = sum_k w[n][k] x[k]
Vector multiply(std::span<const float> w, std::span<const double> x);
// out[n] += scale * sum_r b[n][r] low[r]
void add_expand(Vector& out, const LoraPair& pair, std::span<const double> low);

// x * rsqrt(mean(x^2) + eps) * gamma
Vector rms_norm(std::span<const double> x, std::span<const float> gamma, double eps);

// Turns element i < rotary_dim / 2 with element i + rotary_dim / 2 by the angle of `cos_sin` [rotary_dim / 2][2].
void rope(std::span<double> head, size_t rotary_dim, std::span<const float> cos_sin);

struct AttentionOptions {
    double scale = 1;
    size_t window = 0;            // 0: all
    double softcap = 0;           // 0: none
    const float* sink = nullptr;  // one more score, which gives no value
};
// Attention of one query over keys and values [n][head_dim]; the query stands at the last position.
Vector attention(std::span<const float> query, std::span<const float> keys, std::span<const float> values,
                 const AttentionOptions& options);

double silu(double x);
double gelu_tanh(double x);

}  // namespace lorad::reference
