// embed: x[t][h] = table[token(t)][h] * scale
//   table  [vocab][table_stride]  WEIGHT_TYPE, or packed (weight_format.h)
//   x      [T][x_stride]          f32
// A token below 0 is the previous step's sampled id number ~token; an id outside the vocabulary reads row 0.
// grid (ceil(H / 4 / workgroup), T); four elements per thread.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/formats/weights.glsl"
#include "gpu/kernels/rows/embed.params.h"

layout(constant_id = 1) const uint kWeightType = 0;
layout(push_constant, scalar) uniform Push { EmbedParams p; };

void main() {
    uint t = gl_WorkGroupID.y;
    uint chunk = gl_GlobalInvocationID.x;
    if (t >= step_n_rows(p.step) || chunk * 4 >= p.hidden) return;
    int token = step_row(p.step, t).v.token;
    if (token < 0) token = IntRef(p.sampled + uint64_t(~token) * 4).v;
    if (token < 0 || uint(token) >= p.vocab) token = 0;
    vec4 value = load4_weights(p.table, uint(token), chunk, p.table_stride, kWeightType) * p.scale;
    store4(p.x + uint64_t(t) * p.x_stride * 4, chunk, value, 0);
}
