// norm_pair: y[t] = a[t] * rsqrt(mean(a[t]^2) + eps) * a_gamma + b[t] * rsqrt(mean(b[t]^2) + eps) * b_gamma
// All f32. grid (T); one workgroup per row, which reads all of its row before it writes; moves 12 H bytes.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/reduce.glsl"
#include "gpu/kernels/rows/norm_pair.params.h"

layout(constant_id = 1) const uint kHidden = 64;
layout(push_constant, scalar) uniform Push { NormPairParams p; };

const uint kThreads = gl_WorkGroupSize.x;
const uint kPerThread = (kHidden + kThreads - 1) / kThreads;

void main() {
    const uint t = gl_WorkGroupID.x, thread = gl_LocalInvocationIndex;
    const uint n_rows = gl_NumWorkGroups.x > 1 ? step_n_rows(p.step) : 1;
    if (t >= n_rows) return;
    float a[kPerThread], b[kPerThread];
    float a_squares = 0.0, b_squares = 0.0;
    for (uint i = 0; i < kPerThread; i++) {
        const uint column = i * kThreads + thread;
        a[i] = column < kHidden ? FloatRef(p.a + (uint64_t(t) * p.a_stride + column) * 4).v : 0.0;
        b[i] = column < kHidden ? FloatRef(p.b + (uint64_t(t) * p.b_stride + column) * 4).v : 0.0;
        a_squares = fma(a[i], a[i], a_squares);
        b_squares = fma(b[i], b[i], b_squares);
    }
    const float a_inverse = inversesqrt(workgroup_sum(a_squares) / float(kHidden) + p.eps);
    barrier();
    const float b_inverse = inversesqrt(workgroup_sum(b_squares) / float(kHidden) + p.eps);
    for (uint i = 0; i < kPerThread; i++) {
        const uint column = i * kThreads + thread;
        if (column >= kHidden) continue;
        const float of_b = b[i] * b_inverse * FloatRef(p.b_gamma + column * 4).v;
        FloatRef(p.y + (uint64_t(t) * p.y_stride + column) * 4).v = fma(a[i] * a_inverse, FloatRef(p.a_gamma + column * 4).v, of_b);
    }
}
