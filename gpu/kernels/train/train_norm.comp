// train_norm, with xh = x * rho, rho = (mean(x^2) + eps)^-1/2:
//   forward   y = xh * gamma, padding zeroed
//   backward  dx += rho * (gamma dy - xh * mean(gamma dy xh)); terms = dy xh where they are wanted
// grid (T); one workgroup a row
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/reduce.glsl"
#include "gpu/kernels/train/train_rows.params.h"

layout(constant_id = 1) const uint kBackward = 0;
layout(constant_id = 2) const uint kType = 0;  // of y
layout(push_constant, scalar) uniform Push { TrainNormParams p; };

float at(uint64_t base, uint h) { return FloatRef(base + uint64_t(h) * 4).v; }

float normed(uint64_t x, uint h, float rho) { return h < p.hidden ? at(x, h) * rho * at(p.gamma, h) : 0.0; }

void main() {
    uint t = gl_WorkGroupID.x;
    uint row = p.rows == 0 ? t : UintRef(p.rows + uint64_t(t) * 4).v;
    uint64_t x = p.x + uint64_t(row) * p.x_stride * 4;
    uint first = gl_LocalInvocationIndex, step = gl_WorkGroupSize.x;
    float squares = 0.0;
    for (uint h = first; h < p.hidden; h += step) squares = fma(at(x, h), at(x, h), squares);
    float rho = inversesqrt(workgroup_sum(squares) / float(p.hidden) + p.eps);
    if (kBackward == 0) {
        uint64_t y = p.y + uint64_t(t) * p.y_stride * bytes_of(kType);
        if (kType != 0) {
            for (uint h = first * 2; h < p.y_stride; h += step * 2) {
                const vec2 pair = vec2(normed(x, h, rho), normed(x, h + 1, rho));
                UintRef(y + uint64_t(h) * 2).v = pack_pair(bounded(vec4(pair, 0.0, 0.0), kType).xy, kType);
            }
            return;
        }
        for (uint h = first; h < p.y_stride; h += step) FloatRef(y + uint64_t(h) * 4).v = normed(x, h, rho);
        return;
    }
    uint64_t dy = p.dy + uint64_t(t) * p.y_stride * 4;
    float dot_sum = 0.0;
    for (uint h = first; h < p.hidden; h += step) dot_sum = fma(at(p.gamma, h) * at(dy, h), at(x, h) * rho, dot_sum);
    barrier();  // the sum before has been read
    float mean = workgroup_sum(dot_sum) / float(p.hidden);
    for (uint h = first; h < p.hidden; h += step) {
        float xh = at(x, h) * rho;
        FloatRef dx = FloatRef(p.dx + (uint64_t(row) * p.x_stride + h) * 4);
        dx.v = fma(rho, fma(-xh, mean, at(p.gamma, h) * at(dy, h)), dx.v);
        if (p.terms != 0) FloatRef(p.terms + (uint64_t(t) * p.y_stride + h) * 4).v = at(dy, h) * xh;
    }
}
