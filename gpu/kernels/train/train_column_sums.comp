// train_column_sums: to[n] += scale * factor[n] * sum over rows t and parts q of a[t][q * columns + n] *
// b[t][q * columns + n], in order of t and q. a and b are of TYPE, of 16 bits with an even stride; the sums are f32.
// grid (ceil(columns / workgroup))
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/train/train_rows.params.h"

layout(constant_id = 1) const uint kType = 0;
layout(push_constant, scalar) uniform Push { TrainColumnSumsParams p; };

float number(uint64_t rows, uint stride, uint t, uint column) {
    return load1(rows + uint64_t(t) * stride * (kType == 0 ? 4 : 2), column, kType);
}

void main() {
    uint n = gl_GlobalInvocationID.x;
    if (n >= p.n_columns) return;
    float sum = 0.0;
    for (uint t = 0; t < p.rows; t++) {
        for (uint q = 0; q < p.n_parts; q++) {
            uint column = q * p.n_columns + n;
            float a = number(p.a, p.a_stride, t, column);
            sum = p.b == 0 ? sum + a : fma(a, number(p.b, p.b_stride, t, column), sum);
        }
    }
    FloatRef to = FloatRef(p.to + uint64_t(n) * 4);
    sum *= p.scale;
    to.v += p.factor == 0 ? sum : sum * FloatRef(p.factor + uint64_t(n) * 4).v;
}
