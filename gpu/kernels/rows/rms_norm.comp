// rms_norm: y[t][h] = x[row(t)][h] * rsqrt(mean(x[row(t)]^2) + eps) * gamma[h]
//   x      [.][x_stride]  f32
//   gamma  [H]            f32; without an address y is x as it is
//   y      [T][y_stride]  ACT_TYPE, elements H.. are zeroed; with an address for them, in fragments as well
//   norms  with an address, the rows' inverses for the norms that are deferred (deferred_norm.h)
// grid (T); one workgroup per row; moves 4 H bytes in and 2-4 H out.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/reduce.glsl"
#include "gpu/kernels/products/activation_fragments.glsl"
#include "gpu/kernels/products/deferred_norm.h"
#include "gpu/kernels/rows/rms_norm.params.h"
#include "gpu/kernels/lora/slot_norms.glsl"

layout(constant_id = 1) const uint kActType = 0;
layout(constant_id = 2) const uint kHidden = 64;
layout(constant_id = 3) const uint kSlotNorms = 0;
layout(constant_id = 4) const uint kInFragments = 0;  // whether y is wanted in fragments, too: 1 + their order
layout(constant_id = 5) const uint kRaw = 0;
layout(push_constant, scalar) uniform Push { RmsNormParams p; };

const uint kThreads = gl_WorkGroupSize.x;
const uint kChunks = (kHidden + 3) / 4;
const uint kPerThread = (kChunks + kThreads - 1) / kThreads;

vec4 masked(vec4 v, uint chunk) {
    if (kHidden % 4 == 0 || chunk * 4 + 4 <= kHidden) return v;
    return mix(vec4(0.0), v, lessThan(chunk * 4 + uvec4(0, 1, 2, 3), uvec4(kHidden)));
}

void store_normed(uint t, uint chunk, vec4 value) {
    store4(p.y + uint64_t(t) * p.y_stride * bytes_of(kActType), chunk, value, kActType);
    if (kInFragments != 0) store4_in_fragments(p.y_fragments, t, chunk, p.y_stride, value, kActType, kInFragments - 1);
}

void main() {
    uint t = gl_WorkGroupID.x;
    const uint n_rows = gl_NumWorkGroups.x > 1 || p.logit_rows != 0 ? UintRef(p.n_rows).v : 1;
    if (leaves_at_once(kSlotNorms != 0 || p.logit_rows != 0, gl_NumWorkGroups.x, t, n_rows)) return;
    uint row = p.logit_rows == 0 ? t : LogitRowRef(p.logit_rows + uint64_t(t) * 8).v.row;
    uint64_t x = p.x + uint64_t(row) * p.x_stride * 4;
    uint64_t row_gamma = p.gamma;
    if (kSlotNorms != 0) row_gamma = slot_gamma(p.slot_norms, step_row(p.step, row).v.extras_slot, row_gamma);
    uint thread = gl_LocalInvocationIndex;

    vec4 v[kPerThread];
    vec4 gamma[kPerThread];  // loaded before the sum over the row is known
    float squares = 0.0;
    for (uint i = 0; i < kPerThread; i++) {
        uint chunk = i * kThreads + thread;
        v[i] = chunk < kChunks ? masked(load4(x, chunk, 0), chunk) : vec4(0.0);
        if (kRaw == 0 && chunk < kChunks) gamma[i] = load4(row_gamma, chunk, 0);
        squares = sum_squares4(v[i], squares);
    }
    float inverse = inversesqrt(workgroup_sum(squares) / float(kHidden) + p.eps);
    if (t >= n_rows) return;
    if (p.norms != 0 && thread == 0) FloatRef(p.norms + kDeferredInverse + t * 4).v = inverse;

    for (uint i = 0; i < kPerThread; i++) {
        uint chunk = i * kThreads + thread;
        if (chunk < kChunks) store_normed(t, chunk, kRaw != 0 ? v[i] : masked(v[i] * inverse * gamma[i], chunk));
    }
    for (uint chunk = kChunks + thread; chunk < p.y_stride / 4; chunk += kThreads) store_normed(t, chunk, vec4(0.0));
}
