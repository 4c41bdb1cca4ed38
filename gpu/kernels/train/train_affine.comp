// train_affine: to[t][n] = base[t][n] + z[t][n] * gain[n] * factor[n] + bias[n], each of base, gain, factor and bias
// only where it has an address
// grid (ceil(n / workgroup), T)
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/train/train_rows.params.h"

layout(push_constant, scalar) uniform Push { TrainAffineParams p; };

void main() {
    uint t = gl_WorkGroupID.y, n = gl_GlobalInvocationID.x;
    if (n >= p.n) return;
    float value = FloatRef(p.z + (uint64_t(t) * p.z_stride + n) * 4).v;
    if (p.gain != 0) value *= FloatRef(p.gain + uint64_t(n) * 4).v;
    if (p.factor != 0) value *= FloatRef(p.factor + uint64_t(n) * 4).v;
    if (p.bias != 0) value += FloatRef(p.bias + uint64_t(n) * 4).v;
    if (p.base != 0) value += FloatRef(p.base + (uint64_t(t) * p.base_stride + n) * 4).v;
    FloatRef(p.to + (uint64_t(t) * p.to_stride + n) * 4).v = value;
}
