// train_adamw: one step of AdamW of every trained number, as TrainAdamwParams has it
// grid (x, y), together ceil(n / workgroup); moves 28 bytes a number
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/train/train_rows.params.h"

layout(push_constant, scalar) uniform Push { TrainAdamwParams p; };

void main() {
    uint i = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
    if (i >= p.n) return;
    uint64_t at = uint64_t(i) * 4;
    float g = FloatRef(p.gradients + at).v * p.factor;
    float m = FloatRef(p.first + at).v, v = FloatRef(p.second + at).v;
    m = fma(p.one_minus_beta1, g - m, m);
    v = fma(p.one_minus_beta2 * g, g, p.beta2 * v);
    FloatRef(p.first + at).v = m;
    FloatRef(p.second + at).v = v;
    FloatRef value = FloatRef(p.values + at);
    value.v = value.v * p.keep - p.step_size * (m / (sqrt(v) / p.root + p.eps));
}
