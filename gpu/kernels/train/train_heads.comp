// train_heads: the RMS norm of each head of q and k, where there is one, and the rotary embedding.
//   forward   turned = R(turn) (y rho gamma); of 16 bits there are the heads of values behind, as they are
//   backward  dy from turned's gradients, by R(-turn) and the norm's derivative; terms = what gamma's gradient sums
// grid (q heads + k heads, of 16 bits + v heads, T); one workgroup a head of a row
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/reduce.glsl"
#include "gpu/kernels/train/train_rows.params.h"

layout(constant_id = 1) const uint kBackward = 0;
layout(constant_id = 2) const uint kHeadDim = 64;
layout(constant_id = 3) const uint kRotaryDim = 64;
layout(constant_id = 4) const uint kType = 0;  // of turned, forward
layout(push_constant, scalar) uniform Push { TrainHeadsParams p; };

const uint kHalf = kRotaryDim / 2;
shared float values[kHeadDim];

// Element d of the head in `values`, turned by sign * its angle.
float turned_by(uint d, uint turn, float sign) {
    if (d >= kRotaryDim) return values[d];
    bool is_first = d < kHalf;
    vec2 cos_sin = Vec2Ref(p.rope + (uint64_t(turn) * kHalf + (is_first ? d : d - kHalf)) * 8).v;
    float other = values[is_first ? d + kHalf : d - kHalf] * cos_sin.y * sign;
    return is_first ? values[d] * cos_sin.x - other : values[d] * cos_sin.x + other;
}

void main() {
    uint head = gl_WorkGroupID.x, t = gl_WorkGroupID.y;
    uint64_t gamma = head < p.n_q_heads ? p.q_gamma : p.k_gamma;
    uint64_t y = p.y + (uint64_t(t) * p.y_stride + head * kHeadDim) * 4;
    uint64_t turned = p.turned + (uint64_t(t) * p.turned_stride + head * kHeadDim) * bytes_of(kType);
    uint turn = UintRef(p.turns + uint64_t(t) * 4).v;
    uint first = gl_LocalInvocationIndex, step = gl_WorkGroupSize.x;
    float rho = 1.0;
    if (kType != 0 && head >= p.n_turned_heads) {
        for (uint d = first * 2; d < kHeadDim; d += step * 2) UintRef(turned + d * 2).v = pack_pair(bounded(vec4(Vec2Ref(y + d * 4).v, 0.0, 0.0), kType).xy, kType);
        return;
    }
    if (gamma != 0) {
        float squares = 0.0;
        for (uint d = first; d < kHeadDim; d += step) {
            float v = FloatRef(y + d * 4).v;
            squares = fma(v, v, squares);
        }
        rho = inversesqrt(workgroup_sum(squares) / float(kHeadDim) + p.eps);
    }
    if (kBackward == 0) {
        for (uint d = first; d < kHeadDim; d += step) values[d] = FloatRef(y + d * 4).v * rho * (gamma != 0 ? FloatRef(gamma + d * 4).v : 1.0);
        barrier();
        if (kType == 0) {
            for (uint d = first; d < kHeadDim; d += step) FloatRef(turned + d * 4).v = turned_by(d, turn, 1.0);
        } else {
            for (uint d = first * 2; d < kHeadDim; d += step * 2) {
                UintRef(turned + d * 2).v = pack_pair(bounded(vec4(turned_by(d, turn, 1.0), turned_by(d + 1, turn, 1.0), 0.0, 0.0), kType).xy, kType);
            }
        }
        return;
    }
    for (uint d = first; d < kHeadDim; d += step) values[d] = FloatRef(turned + d * 4).v;
    barrier();
    uint64_t dy = p.dy + (uint64_t(t) * p.y_stride + head * kHeadDim) * 4;
    if (gamma == 0) {
        for (uint d = first; d < kHeadDim; d += step) FloatRef(dy + d * 4).v = turned_by(d, turn, -1.0);
        return;
    }
    float dot_sum = 0.0;
    for (uint d = first; d < kHeadDim; d += step) {
        dot_sum = fma(turned_by(d, turn, -1.0) * FloatRef(gamma + d * 4).v, FloatRef(y + d * 4).v * rho, dot_sum);
    }
    float mean = workgroup_sum(dot_sum) / float(kHeadDim);
    for (uint d = first; d < kHeadDim; d += step) {
        float normed = FloatRef(y + d * 4).v * rho, g = turned_by(d, turn, -1.0);
        FloatRef(dy + d * 4).v = rho * fma(-normed, mean, g * FloatRef(gamma + d * 4).v);
        if (p.terms != 0) FloatRef(p.terms + (uint64_t(t) * p.turned_stride + head * kHeadDim + d) * 4).v = g * normed;
    }
}
