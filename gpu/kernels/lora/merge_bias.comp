// merge_bias: to[n] = from[n] + sum_i factor_i bias_i[n]; rows behind n_changed are copied
//   from, to, bias_i  f32; from may be 0 (zeros). grid (ceil(n_rows / workgroup)).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/lora/merge_weights.params.h"

layout(push_constant, scalar) uniform Push { MergeWeightsParams p; };

layout(buffer_reference, scalar, buffer_reference_align = 8) buffer PartRef { MergePart v; };

void main() {
    uint n = gl_GlobalInvocationID.x;
    if (n >= p.n_rows) return;
    float sum = p.from != 0 ? FloatRef(p.from + uint64_t(n) * 4).v : 0.0;
    if (n < p.n_changed) {
        for (uint i = 0; i < p.n_parts; i++) {
            MergePart part = PartRef(p.parts + uint64_t(i) * 48).v;
            if (part.bias != 0) sum = fma(part.factor, FloatRef(part.bias + uint64_t(n) * 4).v, sum);
        }
    }
    FloatRef(p.to + uint64_t(n) * 4).v = sum;
}
