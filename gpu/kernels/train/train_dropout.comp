// train_dropout: to[t][k] = x[t][k] / (1 - p), or 0 with probability p. By FORM that is written, added to what is there,
// or x minus it is written. x and to are of TYPE; of 16 bits rows begin at multiples of 8 bytes, and nothing is added.
// Word k % 4 of Philox4x32-10 of the counter {k / 4, position, example, module} and the key {seed, step} decides what
// stays: the same wherever the row lies.
// grid (ceil(columns / 4 / workgroup), T)
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/train/train_rows.params.h"

layout(constant_id = 1) const uint kForm = kDropoutLeft;
layout(constant_id = 2) const uint kType = 0;
layout(push_constant, scalar) uniform Push { TrainDropoutParams p; };

uvec4 philox(uvec4 counter, uvec2 key) {
    for (uint round = 0; round < 10; round++) {
        uint a_high, a_low, b_high, b_low;
        umulExtended(0xD2511F53u, counter.x, a_high, a_low);
        umulExtended(0xCD9E8D57u, counter.z, b_high, b_low);
        counter = uvec4(b_high ^ counter.y ^ key.x, b_low, a_high ^ counter.w ^ key.y, a_low);
        key += uvec2(0x9E3779B9u, 0xBB67AE85u);
    }
    return counter;
}

void main() {
    uint t = gl_WorkGroupID.y, first = gl_GlobalInvocationID.x * 4;
    if (first >= p.columns) return;
    uvec2 row = Uvec2Ref(p.row_keys + uint64_t(t) * 8).v;
    uvec4 words = philox(uvec4(first / 4, row.y, row.x, p.module), uvec2(p.seed, p.step));
    if (kType != 0) {
        const vec4 x = load4(p.x + uint64_t(t) * p.x_stride * 2, first / 4, kType);
        const vec4 left = mix(vec4(0.0), x * p.factor, greaterThanEqual(words, uvec4(p.threshold)));
        const vec4 value = kForm == kDropoutRest ? x - left : left;
        store4(p.to + uint64_t(t) * p.to_stride * 2, first / 4, bounded(value, kType), kType);
        return;
    }
    for (uint i = 0; i < 4 && first + i < p.columns; i++) {
        float x = FloatRef(p.x + (uint64_t(t) * p.x_stride + first + i) * 4).v;
        FloatRef to = FloatRef(p.to + (uint64_t(t) * p.to_stride + first + i) * 4);
        float left = words[i] >= p.threshold ? x * p.factor : 0.0;
        to.v = kForm == kDropoutAdds ? to.v + left : kForm == kDropoutRest ? x - left : left;
    }
}
