// train_act, with gate g and up u of a row, sig the logistic function:
//   forward   h = g sig(g) u, padding zeroed
//   backward  dg = dh u sig(g) (1 + g (1 - sig(g))), du = dh g sig(g)
// grid (ceil(h_stride / workgroup), T)
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/train/train_rows.params.h"

layout(constant_id = 1) const uint kBackward = 0;
layout(push_constant, scalar) uniform Push { TrainActParams p; };

void main() {
    uint t = gl_WorkGroupID.y, f = gl_GlobalInvocationID.x;
    if (f >= p.h_stride) return;
    FloatRef h = FloatRef(p.h + (uint64_t(t) * p.h_stride + f) * 4);
    if (f >= p.ffn) {
        if (kBackward == 0) h.v = 0.0;
        return;
    }
    uint64_t at = (uint64_t(t) * p.y_stride + f) * 4, to_up = uint64_t(p.ffn) * 4;
    float g = FloatRef(p.y + at).v, u = FloatRef(p.y + at + to_up).v;
    float sig = 1.0 / (1.0 + exp(-g));
    if (kBackward == 0) {
        h.v = g * sig * u;
    } else {
        FloatRef(p.dy + at).v = h.v * u * sig * (1.0 + g * (1.0 - sig));
        FloatRef(p.dy + at + to_up).v = h.v * g * sig;
    }
}
