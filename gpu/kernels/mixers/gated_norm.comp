// gated_norm: y[t][h] = x[t][h] * rsqrt(mean(x[t][h]^2) + eps) * gamma * silu(gate[t][h]), group by group
// With a head size the other way round, as Mamba 2 does it: u = (x + skip[head] skip_x) silu(gate); y = u *
// rsqrt(mean(u^2) + eps) * gamma
//   x, gate, skip_x  f32;  y  ACT_TYPE
// grid (groups, T); a workgroup has one group of one row; moves 8-12 bytes an element in and 2-4 out.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/reduce.glsl"
#include "gpu/kernels/lora/slot_norms.glsl"
#include "gpu/kernels/mixers/gated_norm.params.h"

layout(constant_id = 1) const uint kActType = 0;
layout(constant_id = 2) const uint kSize = 16;     // of a group, a multiple of 4
layout(constant_id = 3) const uint kHeadSize = 0;  // of Mamba 2, or 0
layout(push_constant, scalar) uniform Push { GatedNormParams p; };

const uint kThreads = gl_WorkGroupSize.x;
const uint kChunks = kSize / 4;
const uint kPerThread = (kChunks + kThreads - 1) / kThreads;

vec4 silu(vec4 x) { return x / (1.0 + exp(-x)); }

void main() {
    const uint t = gl_WorkGroupID.y, group = gl_WorkGroupID.x;
    const uint n_rows = gl_NumWorkGroups.y > 1 ? step_n_rows(p.step) : 1;
    if (t >= n_rows) return;
    const uint thread = gl_LocalInvocationIndex;
    const uint64_t x = p.x + (uint64_t(t) * p.x_stride + group * kSize) * 4;
    const uint64_t gate = p.gate + (uint64_t(t) * p.gate_stride + group * kSize) * 4;
    uint64_t gamma = p.gamma;
    if (p.slot_norms != 0) gamma = slot_gamma(p.slot_norms, step_row(p.step, t).v.extras_slot, gamma);
    if (kHeadSize != 0) gamma += group * kSize * 4;
    const uint64_t y = p.y + uint64_t(t) * p.y_stride * bytes_of(kActType);

    vec4 v[kPerThread];
    float squares = 0.0;
    for (uint i = 0; i < kPerThread; i++) {
        const uint chunk = i * kThreads + thread;
        v[i] = chunk < kChunks ? load4_f32(x, chunk * 4, false) : vec4(0.0);
        if (kHeadSize != 0 && chunk < kChunks) {
            const uint element = group * kSize + chunk * 4;
            vec4 skip;
            for (uint c = 0; c < 4; c++) skip[c] = FloatRef(p.skip + (element + c) / kHeadSize * 4).v;
            v[i] = fma(skip, load4_f32(p.skip_x + uint64_t(t) * p.skip_stride * 4, element, false), v[i]) * silu(load4_f32(gate, chunk * 4, false));
        }
        squares = sum_squares4(v[i], squares);
    }
    const float inverse = inversesqrt(workgroup_sum(squares) / float(kSize) + p.eps);
    for (uint i = 0; i < kPerThread; i++) {
        const uint chunk = i * kThreads + thread;
        if (chunk >= kChunks) continue;
        vec4 value = v[i] * inverse * load4(gamma, chunk, 0);
        if (kHeadSize == 0) value *= silu(load4_f32(gate, chunk * 4, false));
        store4(y, group * kChunks + chunk, value, kActType);
    }
    if (group + 1 != gl_NumWorkGroups.x) return;
    for (uint chunk = gl_NumWorkGroups.x * kChunks + thread; chunk < p.y_stride / 4; chunk += kThreads) store4(y, chunk, vec4(0.0), kActType);
}
