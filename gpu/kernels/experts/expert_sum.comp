// expert_sum: out[t] = sum_j weight[t][j] * (y[t * top + j] + bias[expert]), j in the order of choice, +
// sigmoid(gate[t]) * shared[t] All f32. grid (ceil(hidden / workgroup), T); one column for each thread; moves 4 (top +
// 2) bytes an element.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/experts/expert_sum.params.h"

layout(constant_id = 1) const uint kTop = 1;
layout(constant_id = 2) const uint kHasBias = 0;
layout(constant_id = 3) const uint kHasShared = 0;
layout(constant_id = 4) const uint kHasGate = 0;
layout(push_constant, scalar) uniform Push { ExpertSumParams p; };

void main() {
    const uint t = gl_WorkGroupID.y, column = gl_GlobalInvocationID.x;
    const uint n_rows = gl_NumWorkGroups.y > 1 ? step_n_rows(p.step) : 1;
    if (t >= n_rows || column >= p.hidden) return;
    float acc = 0.0;
    for (uint j = 0; j < kTop; j++) {
        const uint64_t pair = uint64_t(t) * kTop + j;
        float value = FloatRef(p.y + (pair * p.y_stride + column) * 4).v;
        if (kHasBias != 0) value += FloatRef(p.bias + (uint64_t(UintRef(p.chosen + pair * 4).v) * p.hidden + column) * 4).v;
        acc = fma(FloatRef(p.weights + pair * 4).v, value, acc);
    }
    if (kHasShared != 0) {
        const float value = FloatRef(p.shared_y + (uint64_t(t) * p.shared_stride + column) * 4).v;
        const float gate = kHasGate != 0 ? 1.0 / (1.0 + exp(-FloatRef(p.shared_gate + uint64_t(t) * p.gate_stride * 4).v)) : 1.0;
        acc = fma(gate, value, acc);
    }
    FloatRef(p.to + (uint64_t(t) * p.to_stride + column) * 4).v = acc;
}
