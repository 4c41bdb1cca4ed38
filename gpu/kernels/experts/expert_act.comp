// expert_act: act[pair][f] = activation(gate) * up, or clamped as gpt-oss has it: (min-max(up) + 1) * g * sigmoid(alpha
// g), g = min(gate, limit)
//   y    [pair][y_stride]    f32
//   act  [pair][act_stride]  ACT_TYPE
// grid (pairs, ceil(act_stride / 4 / workgroup)); four outputs for each thread.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/rows/activation.glsl"
#include "gpu/kernels/experts/expert_act.params.h"

layout(constant_id = 1) const uint kActType = 0;
layout(constant_id = 2) const uint kActivation = 0;  // an Activation
layout(constant_id = 3) const uint kClamped = 0;
layout(constant_id = 4) const uint kInterleaved = 0;     // gate and up of f lie side by side
layout(constant_id = 5) const uint kHasBias = 0;
#include "gpu/kernels/experts/expert_gate.glsl"
layout(push_constant, scalar) uniform Push { ExpertActParams p; };

void main() {
    const uint pair = gl_WorkGroupID.x, first = (gl_WorkGroupID.y * gl_WorkGroupSize.x + gl_LocalInvocationIndex) * 4;
    if (pair >= step_n_rows(p.step) * p.top || first >= p.act_stride) return;
    const uint64_t y = p.y + uint64_t(pair) * p.y_stride * 4;
    const uint64_t bias = kHasBias != 0 ? p.bias + uint64_t(UintRef(p.chosen + uint64_t(pair) * 4).v) * (2 * p.ffn * 4) : 0;
    vec4 value = vec4(0.0);
    for (uint c = 0; c < 4; c++) {
        const uint f = first + c;
        if (f >= p.ffn) break;
        const uint gate_at = kInterleaved != 0 ? 2 * f : f, up_at = kInterleaved != 0 ? 2 * f + 1 : p.ffn + f;
        float gate = FloatRef(y + gate_at * 4).v, up = FloatRef(y + up_at * 4).v;
        if (kHasBias != 0) {
            gate += FloatRef(bias + gate_at * 4).v;
            up += FloatRef(bias + up_at * 4).v;
        }
        value[c] = gated(gate, up, p.alpha, p.limit);
    }
    store4(p.act + uint64_t(pair) * p.act_stride * bytes_of(kActType), first / 4, value, kActType);
}
