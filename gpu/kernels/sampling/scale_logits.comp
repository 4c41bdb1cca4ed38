// scale_logits: l = scale * logits[r][v]; logits[r][v] = softcap > 0 ? softcap * tanh(l / softcap) : l
//   logits  [R][logits_stride]  f32, in place; numbers that are not finite stay so
// grid (ceil(V / 4 / workgroup), R); four logits for each thread; moves 8 V bytes per row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/sampling/scale_logits.params.h"

layout(push_constant, scalar) uniform Push { ScaleLogitsParams p; };

void main() {
    const uint r = gl_WorkGroupID.y, chunk = gl_GlobalInvocationID.x;
    if (r >= UintRef(p.n_logit_rows).v || chunk * 4 >= p.vocab) return;
    const uint64_t row = p.logits + uint64_t(r) * p.logits_stride * 4;
    vec4 value = load4(row, chunk, 0) * p.scale;
    // Beyond 15 tanh is 1 in f32, and some devices' overflows. A NaN is no lesser and no greater, and stays.
    if (p.softcap != 0.0) {
        const vec4 inner = value / p.softcap;
        const vec4 capped = p.softcap * tanh(clamp(inner, -15.0, 15.0));
        for (uint c = 0; c < 4; c++) value[c] = isnan(value[c]) || isinf(value[c]) ? value[c] : capped[c];
    }
    store4(row, chunk, value, 0);
}
