// train_join: c[i][j] = alpha * sum over parts s of parts[s][i][j], in their order, or that added to c
// grid (ceil(n / workgroup), m)
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/train/train_product.params.h"

layout(constant_id = 1) const uint kAdds = 0;
layout(push_constant, scalar) uniform Push { TrainJoinParams p; };

void main() {
    uint i = gl_WorkGroupID.y, j = gl_GlobalInvocationID.x;
    if (j >= p.n) return;
    float sum = 0.0;
    for (uint s = 0; s < p.n_parts; s++) sum += FloatRef(p.parts + ((uint64_t(s) * p.part_rows + i) * p.stride + j) * 4).v;
    FloatRef c = FloatRef(p.c + (uint64_t(i) * p.c_i + uint64_t(j) * p.c_j) * 4);
    c.v = kAdds != 0 ? fma(p.alpha, sum, c.v) : p.alpha * sum;
}
