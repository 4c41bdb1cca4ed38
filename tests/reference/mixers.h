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

struct Mamba {
    size_t heads = 0, head_size = 0, groups = 0, state_size = 0, taps = 0;
    std::span<const float> conv_weights, conv_bias, a_log, dt_bias, skip, gamma;  // conv_bias may be empty
    double eps = 1e-6, dt_min = 0, dt_max = 1e300;

    size_t inner() const { return heads * head_size; }
    size_t keys() const { return groups * state_size; }
};
struct MambaMemory {
    ConvMemory conv;
    std::vector<std::vector<Vector>> state;  // [head][head size][state size]
    explicit MambaMemory(const Mamba& mamba);
};
struct MambaToken {
    Vector dt;       // by head
    Vector scanned;  // C h, without the skip
    Vector output;   // after the gated norm
};
// projected: z, x, B, C, dt of one token, as in_proj gives them.
MambaToken mamba_token(const Mamba& mamba, std::span<const double> projected, MambaMemory& memory);

double sigmoid(double x);

}  // namespace lorad::reference
