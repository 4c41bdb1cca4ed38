// train_act, with gate g and up u of a row, sig the logistic function:
//   forward   h = g sig(g) u, padding zeroed; with sums y = sums rounded to its type before
//   backward  dg = dh u sig(g) (1 + g (1 - sig(g))), du = dh g sig(g)
// y, dy and the forward's h are f32 or TYPE, dh and sums f32. An invocation has one column, of 16 bits four.
// grid (ceil(h_stride / columns / workgroup), T)
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/train/train_rows.params.h"

layout(constant_id = 1) const uint kBackward = 0;
layout(constant_id = 2) const uint kType = 0;
layout(push_constant, scalar) uniform Push { TrainActParams p; };

void in_f32(uint t, uint f) {
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

// Four columns as they are kept. Compilers may take a conversion there and back for none, so it goes through a sum that
// they do not know.
vec4 kept(uint64_t row, uint64_t sums, uint f) {
    if (p.sums == 0) return load4(row, f / 4, kType);
    const vec4 v = bounded(load4(sums, f / 4, 0), kType);
    store4(row, f / 4, v, kType);
    return vec4(unpack_pair(pack_pair(v.xy, kType) + p.zero, kType), unpack_pair(pack_pair(v.zw, kType) + p.zero, kType));
}

void in_16_bits(uint t, uint f) {
    if (f >= p.h_stride) return;
    const uint64_t h_row = uint64_t(t) * p.h_stride, y_row = uint64_t(t) * p.y_stride, to_up = uint64_t(p.ffn);
    if (f >= p.ffn) {
        if (kBackward == 0) store4(p.h + h_row * 2, f / 4, vec4(0.0), kType);
        return;
    }
    const vec4 g = kept(p.y + y_row * 2, p.sums + y_row * 4, f), u = kept(p.y + (y_row + to_up) * 2, p.sums + (y_row + to_up) * 4, f);
    const vec4 sig = 1.0 / (1.0 + exp(-g));
    if (kBackward == 0) {
        store4(p.h + h_row * 2, f / 4, bounded(g * sig * u, kType), kType);
    } else {
        const vec4 dh = load4(p.h + h_row * 4, f / 4, 0);
        store4(p.dy + y_row * 2, f / 4, bounded(dh * u * sig * (1.0 + g * (1.0 - sig)), kType), kType);
        store4(p.dy + (y_row + to_up) * 2, f / 4, bounded(dh * g * sig, kType), kType);
    }
}

void main() {
    const uint t = gl_WorkGroupID.y;
    if (kType == 0) in_f32(t, gl_GlobalInvocationID.x);
    else in_16_bits(t, gl_GlobalInvocationID.x * 4);
}
