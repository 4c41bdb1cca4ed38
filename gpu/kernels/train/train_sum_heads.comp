// train_sum_heads:
//   of heads  to[t][h * D + d] = sum over the heads g of group h of from[t][(h * groups + g) * D + d], in their order;
//       grid (ceil(kv heads * D / workgroup), T)
//   dots      to[t][head] = sum over d of dout[t][head][d] * from[t][head][d], and dout rounded to TYPE;  grid (heads,
//       T), one workgroup a head of a row
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/reduce.glsl"
#include "gpu/kernels/train/train_rows.params.h"

layout(constant_id = 1) const uint kType = 0;  // 0: of heads, else dots
layout(push_constant, scalar) uniform Push { TrainHeadSumsParams p; };

void dots() {
    const uint head = gl_WorkGroupID.x, t = gl_WorkGroupID.y;
    const uint64_t begin = uint64_t(t) * p.from_stride + head * p.head_dim;
    float sum = 0.0;
    for (uint d = gl_LocalInvocationIndex * 2; d < p.head_dim; d += gl_WorkGroupSize.x * 2) {
        const vec2 o = Vec2Ref(p.from + (begin + d) * 4).v, dout = Vec2Ref(p.dout + (begin + d) * 4).v;
        sum = fma(o.x, dout.x, fma(o.y, dout.y, sum));
        UintRef(p.rounded + (begin + d) * 2).v = pack_pair(bounded(vec4(dout, 0.0, 0.0), kType).xy, kType);
    }
    sum = workgroup_sum(sum);
    if (gl_LocalInvocationIndex == 0) FloatRef(p.to + (uint64_t(t) * gl_NumWorkGroups.x + head) * 4).v = sum;
}

void main() {
    if (kType != 0) {
        dots();
        return;
    }
    uint t = gl_WorkGroupID.y, column = gl_GlobalInvocationID.x;
    if (column >= p.columns) return;
    uint head = column / p.head_dim, d = column % p.head_dim;
    float sum = 0.0;
    for (uint g = 0; g < p.n_group; g++) sum += FloatRef(p.from + (uint64_t(t) * p.from_stride + (head * p.n_group + g) * p.head_dim + d) * 4).v;
    FloatRef(p.to + (uint64_t(t) * p.to_stride + column) * 4).v = sum;
}
