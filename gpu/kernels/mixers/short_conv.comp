// short_conv: y[t][ch] = C[t][ch] * (bias[ch] + sum_j w[ch][j] (B u)[t - (taps - 1) + j][ch]), LFM2's mixer
//   rows before the run's first come from the sequence's state; zeros at its beginning
// f32 but for y, which is ACT_TYPE. grid (ceil(y_stride / 4 / workgroup), T); four channels for each thread.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/mixers/short_conv.params.h"
#include "gpu/kernels/mixers/state_runs.glsl"

layout(constant_id = 1) const uint kActType = 0;
layout(constant_id = 2) const uint kTaps = 3;
layout(constant_id = 3) const uint kHasBias = 0;
layout(push_constant, scalar) uniform Push { ShortConvParams p; };

float mixed(uint t, uint channel, StateRun run) {
    float acc = kHasBias != 0 ? FloatRef(p.bias + channel * 4).v : 0.0;
    for (uint j = 0; j < kTaps; j++) {
        const uint back = kTaps - 1 - j;
        float x = 0.0;
        if (t >= run.row_begin + back) {
            const uint64_t row = p.m + uint64_t(t - back) * p.m_stride * 4;
            x = FloatRef(row + channel * 4).v * FloatRef(row + (2 * p.channels + channel) * 4).v;
        } else if (run.from != kNoState) {
            x = FloatRef(p.state + (uint64_t(run.from) * p.slot_stride + (t - run.row_begin + j) * p.channels + channel) * 4).v;
        }
        acc = fma(FloatRef(p.weights + (channel * kTaps + j) * 4).v, x, acc);
    }
    return acc * FloatRef(p.m + (uint64_t(t) * p.m_stride + p.channels + channel) * 4).v;
}

void main() {
    const uint t = gl_WorkGroupID.y, chunk = gl_GlobalInvocationID.x;
    const uint n_rows = gl_NumWorkGroups.y > 1 ? step_n_rows(p.step) : 1;
    if (t >= n_rows || chunk * 4 >= p.y_stride) return;
    const StateRun run = row_run(p.runs, p.step, t);
    vec4 value = vec4(0.0);
    for (uint c = 0; c < 4; c++) {
        if (chunk * 4 + c < p.channels) value[c] = mixed(t, chunk * 4 + c, run);
    }
    store4(p.y + uint64_t(t) * p.y_stride * bytes_of(kActType), chunk, value, kActType);
}
