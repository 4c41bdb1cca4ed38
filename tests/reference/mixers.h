// Mixers other than attention in double precision, token by token, written for clarity.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tests/reference/transformer.h"

namespace lorad::reference {

// What a causal convolution remembers of one sequence: its last taps - 1 inputs, oldest first; zeros at the beginning.
using ConvMemory = std::vector<Vector>;
// out[ch] = sum_j w[ch][j] in[t - (taps - 1) + j][ch], and the memory goes on by one token.
Vector causal_conv(std::span<const double> input, std::span<const float> weights, size_t taps, ConvMemory& memory);

struct DeltaNet {
    size_t key_heads = 0, value_heads = 0, key_size = 0, value_size = 0, taps = 0;
    std::span<const float> conv_weights, a_log, dt_bias, gamma;
    double eps = 1e-6;

    size_t keys() const { return key_heads * key_size; }
    size_t values() const { return value_heads * value_size; }
};
struct DeltaMemory {
    ConvMemory conv;
    std::vector<std::vector<Vector>> state;  // [value head][key size][value size]
    explicit DeltaMemory(const DeltaNet& net);
};
struct DeltaToken {
    Vector queries, keys, values;  // after convolution and norms
    Vector g, beta;                // by value head
    Vector attended;               // S^T q
    Vector output;                 // after the gated norm
};
// projected: q, k, v, z, b, a of one token, as in_proj gives them.
DeltaToken delta_token(const DeltaNet& net, std::span<const double> projected, DeltaMemory& memory);

double sigmoid(double x);

}  // namespace lorad::reference
