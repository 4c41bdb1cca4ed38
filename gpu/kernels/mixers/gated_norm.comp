// gated_norm: y[t][h] = x[t][h] * rsqrt(mean(x[t][h]^2) + eps) * gamma * silu(gate[t][h]), head by head
//   x, gate  f32;  y  ACT_TYPE
// grid (heads, T); a workgroup has one head of one row; moves 8 bytes an element in and 2-4 out.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/reduce.glsl"
#include "gpu/kernels/mixers/gated_norm.params.h"

layout(constant_id = 1) const uint kActType = 0;
layout(constant_id = 2) const uint kSize = 16;  // of a head, a multiple of 4
layout(push_constant, scalar) uniform Push { GatedNormParams p; };

const uint kThreads = gl_WorkGroupSize.x;
const uint kChunks = kSize / 4;
const uint kPerThread = (kChunks + kThreads - 1) / kThreads;

void main() {
    const uint t = gl_WorkGroupID.y, head = gl_WorkGroupID.x;
    const uint n_rows = gl_NumWorkGroups.y > 1 ? step_n_rows(p.step) : 1;
    if (t >= n_rows) return;
    const uint thread = gl_LocalInvocationIndex;
    const uint64_t x = p.x + (uint64_t(t) * p.x_stride + head * kSize) * 4;
    const uint64_t gate = p.gate + (uint64_t(t) * p.gate_stride + head * kSize) * 4;
    const uint64_t y = p.y + uint64_t(t) * p.y_stride * bytes_of(kActType);

    vec4 v[kPerThread];
    float squares = 0.0;
    for (uint i = 0; i < kPerThread; i++) {
        const uint chunk = i * kThreads + thread;
        v[i] = chunk < kChunks ? load4_f32(x, chunk * 4, false) : vec4(0.0);
        squares = sum_squares4(v[i], squares);
    }
    const float inverse = inversesqrt(workgroup_sum(squares) / float(kSize) + p.eps);
    for (uint i = 0; i < kPerThread; i++) {
        const uint chunk = i * kThreads + thread;
        if (chunk >= kChunks) continue;
        const vec4 g = load4_f32(gate, chunk * 4, false);
        store4(y, head * kChunks + chunk, v[i] * inverse * load4(p.gamma, chunk, 0) * (g / (1.0 + exp(-g))), kActType);
    }
    if (head + 1 != gl_NumWorkGroups.x) return;
    for (uint chunk = gl_NumWorkGroups.x * kChunks + thread; chunk < p.y_stride / 4; chunk += kThreads) store4(y, chunk, vec4(0.0), kActType);
}
