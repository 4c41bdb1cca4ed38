#include "tests/reference/mixers.h"

#include <algorithm>
#include <cmath>

namespace lorad::reference {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

Vector causal_conv(std::span<const double> input, std::span<const float> weights, size_t taps, ConvMemory& memory) {
    if (memory.empty()) memory.assign(taps - 1, Vector(input.size()));
    memory.emplace_back(input.begin(), input.end());
    Vector out(input.size());
    for (size_t channel = 0; channel < out.size(); channel++) {
        for (size_t j = 0; j < taps; j++) out[channel] += weights[channel * taps + j] * memory[j][channel];
    }
    memory.erase(memory.begin());
    return out;
}

DeltaMemory::DeltaMemory(const DeltaNet& net)
    : state(net.value_heads, std::vector<Vector>(net.key_size, Vector(net.value_size))) {}

namespace {

void normalise(std::span<double> head, double factor) {
    double squares = 0;
    for (const double v : head) squares += v * v;
    for (double& v : head) v = v / std::sqrt(squares + 1e-6) * factor;
}

}  // namespace

DeltaToken delta_token(const DeltaNet& net, std::span<const double> projected, DeltaMemory& memory) {
    const size_t channels = 2 * net.keys() + net.values();
    Vector c = causal_conv(projected.first(channels), net.conv_weights, net.taps, memory.conv);
    for (double& v : c) v = silu(v);
    const std::span<double> all(c);
    for (size_t head = 0; head < net.key_heads; head++) {
        normalise(all.subspan(head * net.key_size, net.key_size), 1.0 / std::sqrt(static_cast<double>(net.key_size)));
        normalise(all.subspan(net.keys() + head * net.key_size, net.key_size), 1.0);
    }
    DeltaToken token;
    token.queries.assign(c.begin(), c.begin() + static_cast<ptrdiff_t>(net.keys()));
    token.keys.assign(c.begin() + static_cast<ptrdiff_t>(net.keys()),
                      c.begin() + static_cast<ptrdiff_t>(2 * net.keys()));
    token.values.assign(c.begin() + static_cast<ptrdiff_t>(2 * net.keys()), c.end());
    const std::span<const double> z = projected.subspan(channels, net.values());
    const std::span<const double> b = projected.subspan(channels + net.values(), net.value_heads),
                                  a = projected.subspan(channels + net.values() + net.value_heads, net.value_heads);
    for (size_t head = 0; head < net.value_heads; head++) {
        const double input = a[head] + net.dt_bias[head];
        token.g.push_back(-std::exp(static_cast<double>(net.a_log[head])) *
                          (std::max(input, 0.0) + std::log1p(std::exp(-std::abs(input)))));
        token.beta.push_back(sigmoid(b[head]));
        const size_t key_head = head / (net.value_heads / net.key_heads);
        const double* q = &token.queries[key_head * net.key_size];
        const double* k = &token.keys[key_head * net.key_size];
        const double* v = &token.values[head * net.value_size];
        std::vector<Vector>& state = memory.state[head];
        Vector known(net.value_size), o(net.value_size);
        for (size_t i = 0; i < net.key_size; i++) {
            for (size_t j = 0; j < net.value_size; j++) {
                state[i][j] *= std::exp(token.g[head]);
                known[j] += state[i][j] * k[i];
            }
        }
        double squares = 0;
        for (size_t j = 0; j < net.value_size; j++) {
            for (size_t i = 0; i < net.key_size; i++) {
                state[i][j] += k[i] * token.beta[head] * (v[j] - known[j]);
                o[j] += state[i][j] * q[i];
            }
            squares += o[j] * o[j];
        }
        for (size_t j = 0; j < net.value_size; j++) {
            token.attended.push_back(o[j]);
            const double normed = o[j] / std::sqrt(squares / static_cast<double>(net.value_size) + net.eps);
            token.output.push_back(net.gamma[j] * normed * silu(z[head * net.value_size + j]));
        }
    }
    return token;
}

MambaMemory::MambaMemory(const Mamba& mamba)
    : state(mamba.heads, std::vector<Vector>(mamba.head_size, Vector(mamba.state_size))) {}

MambaToken mamba_token(const Mamba& mamba, std::span<const double> projected, MambaMemory& memory) {
    const size_t inner = mamba.inner(), channels = inner + 2 * mamba.keys();
    Vector c = causal_conv(projected.subspan(inner, channels), mamba.conv_weights, mamba.taps, memory.conv);
    for (size_t i = 0; i < channels; i++) c[i] = silu(c[i] + (mamba.conv_bias.empty() ? 0.0f : mamba.conv_bias[i]));
    MambaToken token;
    for (size_t head = 0; head < mamba.heads; head++) {
        const double input = projected[inner + channels + head] + mamba.dt_bias[head];
        const double dt =
            std::clamp(std::max(input, 0.0) + std::log1p(std::exp(-std::abs(input))), mamba.dt_min, mamba.dt_max);
        token.dt.push_back(dt);
        const double decay = std::exp(-std::exp(static_cast<double>(mamba.a_log[head])) * dt);
        const size_t group = head / (mamba.heads / mamba.groups);
        const double* b = &c[inner + group * mamba.state_size];
        const double* out = &c[inner + mamba.keys() + group * mamba.state_size];
        for (size_t i = 0; i < mamba.head_size; i++) {
            double sum = 0;
            for (size_t j = 0; j < mamba.state_size; j++) {
                double& h = memory.state[head][i][j];
                h = decay * h + dt * b[j] * c[head * mamba.head_size + i];
                sum += h * out[j];
            }
            token.scanned.push_back(sum);
        }
    }
    Vector u(inner);
    for (size_t i = 0; i < inner; i++)
        u[i] = (token.scanned[i] + mamba.skip[i / mamba.head_size] * c[i]) * silu(projected[i]);
    const size_t group_size = inner / mamba.groups;
    for (size_t group = 0; group < mamba.groups; group++) {
        double squares = 0;
        for (size_t i = group * group_size; i < (group + 1) * group_size; i++) squares += u[i] * u[i];
        for (size_t i = group * group_size; i < (group + 1) * group_size; i++)
            token.output.push_back(mamba.gamma[i] * u[i] /
                                   std::sqrt(squares / static_cast<double>(group_size) + mamba.eps));
    }
    return token;
}

}  // namespace lorad::reference
