// ple_rows: ple[t][l] = (rms(y_scale * y[t][l]) * gamma + sqrt(n) * table[token(t)][l]) / sqrt(2), for each layer l,
// with rms over its n numbers
//   y    [T][y_stride]  f32, [L][n] in each row;  ple [T][ple_stride] f32 likewise
//   table [vocab][table_stride] WEIGHT_TYPE likewise; tokens as in embed
// grid (L, T); moves (4 + 2..4 + 4) n bytes per row and layer. n is a multiple of 4.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/reduce.glsl"
#include "gpu/kernels/rows/ple.params.h"

layout(constant_id = 1) const uint kWeightType = 0;
layout(push_constant, scalar) uniform Push { PleRowsParams p; };

void main() {
    const uint t = gl_WorkGroupID.y, first = gl_WorkGroupID.x * p.n;
    if (t >= step_n_rows(p.step)) return;
    int token = step_row(p.step, t).v.token;
    if (token < 0) token = IntRef(p.sampled + uint64_t(~token) * 4).v;
    if (token < 0 || uint(token) >= p.vocab) token = 0;
    const uint64_t row = p.table + uint64_t(token) * p.table_stride * bytes_of(kWeightType), y = p.y + uint64_t(t) * p.y_stride * 4;
    float squares = 0.0;
    for (uint c = gl_LocalInvocationIndex; c < p.n / 4; c += gl_WorkGroupSize.x) squares = sum_squares4(load4(y, first / 4 + c, 0) * p.y_scale, squares);
    const float inverse = inversesqrt(workgroup_sum(squares) / float(p.n) + p.eps) * p.y_scale, table_scale = sqrt(float(p.n));
    for (uint c = gl_LocalInvocationIndex; c < p.n / 4; c += gl_WorkGroupSize.x) {
        const vec4 projected = load4(y, first / 4 + c, 0) * inverse * load4(p.gamma, c, 0);
        const vec4 own = load4(row, first / 4 + c, kWeightType);
        store4(p.ple + uint64_t(t) * p.ple_stride * 4, first / 4 + c, fma(own, vec4(table_scale), projected) * 0.70710678118654752, 0);
    }
}
