// train_column_sums: to[n] += factor[n] * sum over rows t and parts q of a[t][q * columns + n] * b[t][q * columns + n],
// in order of t and q
// grid (ceil(columns / workgroup))
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/train/train_rows.params.h"

layout(push_constant, scalar) uniform Push { TrainColumnSumsParams p; };

void main() {
    uint n = gl_GlobalInvocationID.x;
    if (n >= p.n_columns) return;
    float sum = 0.0;
    for (uint t = 0; t < p.rows; t++) {
        for (uint q = 0; q < p.n_parts; q++) {
            uint column = q * p.n_columns + n;
            float a = FloatRef(p.a + (uint64_t(t) * p.a_stride + column) * 4).v;
            sum = p.b == 0 ? sum + a : fma(a, FloatRef(p.b + (uint64_t(t) * p.b_stride + column) * 4).v, sum);
        }
    }
    FloatRef to = FloatRef(p.to + uint64_t(n) * 4);
    to.v += p.factor == 0 ? sum : sum * FloatRef(p.factor + uint64_t(n) * 4).v;
}
