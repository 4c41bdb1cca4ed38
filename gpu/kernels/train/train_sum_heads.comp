// train_sum_heads: to[t][h * D + d] = sum over the heads g of group h of from[t][(h * groups + g) * D + d], in their order
// grid (ceil(kv heads * D / workgroup), T)
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/train/train_rows.params.h"

layout(push_constant, scalar) uniform Push { TrainSumHeadsParams p; };

void main() {
    uint t = gl_WorkGroupID.y, column = gl_GlobalInvocationID.x;
    if (column >= p.columns) return;
    uint head = column / p.head_dim, d = column % p.head_dim;
    float sum = 0.0;
    for (uint g = 0; g < p.n_group; g++) sum += FloatRef(p.from + (uint64_t(t) * p.from_stride + (head * p.n_group + g) * p.head_dim + d) * 4).v;
    FloatRef(p.to + (uint64_t(t) * p.to_stride + column) * 4).v = sum;
}
