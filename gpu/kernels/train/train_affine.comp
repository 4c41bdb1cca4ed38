// train_affine: to[t][n] = base[t][n] + z[t][n] * (gain[n] * factor[n] - less) + bias[n], each of base, gain, factor and
// bias only where it has an address (of a gain or factor without one 1). z and to are of TYPE: of 16 bits an invocation
// has four columns, and there is neither base nor bias.
// grid (ceil(n / columns / workgroup), T)
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/train/train_rows.params.h"

layout(constant_id = 1) const uint kType = 0;
layout(push_constant, scalar) uniform Push { TrainAffineParams p; };

void in_16_bits(uint t, uint n) {
    if (n >= p.n) return;
    vec4 gain = vec4(1.0);
    if (p.gain != 0) gain *= load4_f32(p.gain, n, false);
    if (p.factor != 0) gain *= load4_f32(p.factor, n, false);
    const vec4 value = load4(p.z + uint64_t(t) * p.z_stride * 2, n / 4, kType) * (gain - p.less);
    store4(p.to + uint64_t(t) * p.to_stride * 2, n / 4, bounded(value, kType), kType);
}

void main() {
    uint t = gl_WorkGroupID.y, n = gl_GlobalInvocationID.x;
    if (kType != 0) {
        in_16_bits(t, n * 4);
        return;
    }
    if (n >= p.n) return;
    float gain = 1.0;
    if (p.gain != 0) gain *= FloatRef(p.gain + uint64_t(n) * 4).v;
    if (p.factor != 0) gain *= FloatRef(p.factor + uint64_t(n) * 4).v;
    float value = FloatRef(p.z + (uint64_t(t) * p.z_stride + n) * 4).v * (gain - p.less);
    if (p.bias != 0) value += FloatRef(p.bias + uint64_t(n) * 4).v;
    if (p.base != 0) value += FloatRef(p.base + (uint64_t(t) * p.base_stride + n) * 4).v;
    FloatRef(p.to + (uint64_t(t) * p.to_stride + n) * 4).v = value;
}
