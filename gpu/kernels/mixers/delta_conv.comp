// delta_conv: what a gated delta net puts into its recurrence (Yang et al. 2024, "Gated Delta Networks"; Qwen3-Next's
// form of it)
//   c[t][ch] = silu(sum_j w[ch][j] m[t - (taps - 1) + j][ch])     rows before the run's first come from the sequence's
//       state; zeros at its beginning
//   q[h] = c_q[h] / sqrt(sum c_q[h]^2 + 1e-6) / sqrt(Dk), k[h] = c_k[h] / sqrt(sum c_k[h]^2 + 1e-6), v = c_v
//   g[h] = -exp(a_log[h]) softplus(a[h] + dt_bias[h]), beta[h] = sigmoid(b[h])
// With kIsMamba, what a Mamba 2 mixer does (Dao and Gu 2024, "Transformers are SSMs"): c = silu(bias + sum), q = c_C, k
// = c_B, v = c_x, and
//   beta[h] = clamp(softplus(d[h] + dt_bias[h]), dt_min, dt_max), g[h] = -exp(a_log[h]) beta[h]
// All f32. grid (2 key heads + value heads, T); a workgroup makes one head of one row; moves 4 (taps + 1) bytes an
// element, most of them from a cache.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/reduce.glsl"
#include "gpu/kernels/mixers/delta_conv.params.h"
#include "gpu/kernels/mixers/state_runs.glsl"

layout(constant_id = 1) const uint kKeyHeads = 1;
layout(constant_id = 2) const uint kValueHeads = 1;
layout(constant_id = 3) const uint kKeySize = 16;
layout(constant_id = 4) const uint kValueSize = 16;
layout(constant_id = 5) const uint kTaps = 4;
layout(constant_id = 6) const uint kIsMamba = 0;
layout(constant_id = 7) const uint kHasBias = 0;
layout(constant_id = 8) const uint kWide = 1;  // neighbouring elements of a thread; 4 where that divides all sizes
layout(push_constant, scalar) uniform Push { DeltaConvParams p; };

const uint kThreads = gl_WorkGroupSize.x;
const uint kHeadMax = kKeySize > kValueSize ? kKeySize : kValueSize;
const uint kPerThread = (kHeadMax / kWide + kThreads - 1) / kThreads;
const uint kKeys = kKeyHeads * kKeySize, kValues = kValueHeads * kValueSize;
const uint kChannels = 2 * kKeys + kValues;
const uint kFirst = kIsMamba != 0 ? kValues : 0;  // column of m where the convolution's inputs begin

float silu(float x) { return x / (1.0 + exp(-x)); }

// log(1 + e^x), also where one of both is lost beside the other.
float softplus(float x) {
    const float u = exp(-abs(x));
    return max(x, 0.0) + (u < 0.05 ? u * (1.0 - u * (0.5 - u * (1.0 / 3.0 - u * (0.25 - u * 0.2)))) : log(1.0 + u));
}

// A row of `channels` inputs of which the convolution reads some: the run's own, the state's, or none.
uint64_t input_row(uint t, uint back, StateRun run) {
    if (t >= run.row_begin + back) return p.m + (uint64_t(t - back) * p.m_stride + kFirst) * 4;
    return run.from == kNoState ? 0 : p.state + (uint64_t(run.from) * p.slot_stride + (t - run.row_begin + kTaps - 1 - back) * kChannels) * 4;
}

float convolved(uint t, uint channel, StateRun run) {
    float acc = kHasBias != 0 ? FloatRef(p.bias + channel * 4).v : 0.0;
    for (uint j = 0; j < kTaps; j++) {
        const uint64_t row = input_row(t, kTaps - 1 - j, run);
        acc = fma(FloatRef(p.weights + (channel * kTaps + j) * 4).v, row == 0 ? 0.0 : FloatRef(row + channel * 4).v, acc);
    }
    return silu(acc);
}

// Four channels at once, each as above.
vec4 convolved4(uint t, uint channel, StateRun run) {
    vec4 acc = kHasBias != 0 ? load4_f32(p.bias, channel, true) : vec4(0.0);
    const bool is_aligned = kFirst % 4 == 0 && kChannels % 4 == 0 && p.m_stride % 4 == 0 && p.slot_stride % 4 == 0;
    vec4 x[kTaps];  // all loads before the first use
    [[unroll]] for (uint j = 0; j < kTaps; j++) {
        const uint64_t row = input_row(t, kTaps - 1 - j, run);
        x[j] = row == 0 ? vec4(0.0) : load4_f32(row, channel, is_aligned);
    }
    float w[4 * kTaps];
    [[unroll]] for (uint i = 0; i < kTaps; i++) {
        const vec4 four = load4_f32(p.weights, channel * kTaps + i * 4, true);
        [[unroll]] for (uint c = 0; c < 4; c++) w[i * 4 + c] = four[c];
    }
    [[unroll]] for (uint j = 0; j < kTaps; j++) {
        acc = fma(vec4(w[j], w[kTaps + j], w[2 * kTaps + j], w[3 * kTaps + j]), x[j], acc);
    }
    return vec4(silu(acc.x), silu(acc.y), silu(acc.z), silu(acc.w));
}

void main() {
    const uint t = gl_WorkGroupID.y, head = gl_WorkGroupID.x;
    const uint n_rows = gl_NumWorkGroups.y > 1 ? step_n_rows(p.step) : 1;
    if (t >= n_rows) return;
    const StateRun run = row_run(p.runs, p.step, t);
    const bool is_value = head >= 2 * kKeyHeads;
    const uint size = is_value ? kValueSize : kKeySize;
    const uint first = is_value ? 2 * kKeys + (head - 2 * kKeyHeads) * kValueSize : head * kKeySize;
    // Where the head's channels are: Mamba has v, k, q in this order.
    uint source = first;
    if (kIsMamba != 0) source = is_value ? first - 2 * kKeys : head < kKeyHeads ? kValues + kKeys + first : kValues + first - kKeys;
    const uint thread = gl_LocalInvocationIndex;

    vec4 value[kPerThread];
    float squares = 0.0;
    for (uint i = 0; i < kPerThread; i++) {
        const uint d = (i * kThreads + thread) * kWide;
        value[i] = vec4(0.0);
        if (d < size) {
            if (kWide == 4) value[i] = convolved4(t, source + d, run);
            else value[i].x = convolved(t, source + d, run);
        }
        squares = sum_squares4(value[i], squares);
    }
    float scale = 1.0;
    if (!is_value && kIsMamba == 0) {
        scale = inversesqrt(workgroup_sum(squares) + 1e-6);
        if (head < kKeyHeads) scale *= inversesqrt(float(kKeySize));
    }
    const uint64_t out_row = p.to + uint64_t(t) * p.to_stride * 4;
    for (uint i = 0; i < kPerThread; i++) {
        const uint d = (i * kThreads + thread) * kWide;
        if (d >= size) continue;
        const vec4 scaled = value[i] * scale;
        if (kWide == 4 && p.to_stride % 4 == 0) {
            Vec4Ref(out_row + (first + d) * 4).v = scaled;
        } else {
            for (uint c = 0; c < kWide; c++) FloatRef(out_row + (first + d + c) * 4).v = scaled[c];
        }
    }
    if (!is_value || thread != 0) return;
    const uint h = head - 2 * kKeyHeads;
    if (kIsMamba != 0) {
        const float d = FloatRef(p.m + (uint64_t(t) * p.m_stride + kFirst + kChannels + h) * 4).v;
        const float dt = clamp(softplus(d + FloatRef(p.dt_bias + h * 4).v), p.dt_min, p.dt_max);
        FloatRef(out_row + (kChannels + h) * 4).v = -exp(FloatRef(p.a_log + h * 4).v) * dt;
        FloatRef(out_row + (kChannels + kValueHeads + h) * 4).v = dt;
        return;
    }
    const uint64_t gates = p.m + (uint64_t(t) * p.m_stride + kChannels + kValues) * 4;
    const float b = FloatRef(gates + h * 4).v, a = FloatRef(gates + (kValueHeads + h) * 4).v;
    FloatRef(out_row + (kChannels + h) * 4).v = -exp(FloatRef(p.a_log + h * 4).v) * softplus(a + FloatRef(p.dt_bias + h * 4).v);
    FloatRef(out_row + (kChannels + kValueHeads + h) * 4).v = 1.0 / (1.0 + exp(-b));
}
