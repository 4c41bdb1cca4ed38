// train_grad_norm: sums[g] = sum of the squares of gradients[g * n_per_group ..]
// grid (groups)
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/reduce.glsl"
#include "gpu/kernels/train/train_rows.params.h"

layout(push_constant, scalar) uniform Push { TrainGradNormParams p; };

void main() {
    uint begin = gl_WorkGroupID.x * p.n_per_group, end = min(begin + p.n_per_group, p.n);
    float squares = 0.0;
    for (uint i = begin + gl_LocalInvocationIndex; i < end; i += gl_WorkGroupSize.x) {
        float g = FloatRef(p.gradients + uint64_t(i) * 4).v;
        squares = fma(g, g, squares);
    }
    squares = workgroup_sum(squares);
    if (gl_LocalInvocationIndex == 0) FloatRef(p.sums + uint64_t(gl_WorkGroupID.x) * 4).v = squares;
}
