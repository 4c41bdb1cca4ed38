// attention_combine: joins the splits of attention: y = sum_s exp(max_s - max) result_s / sum_s exp(max_s - max) sum_s
//   partials [T][Q][n_splits][4 + D]  f32: max, sum, 0, 0, result; a split without tokens has sum 0 and a max far below any score
//   y        [T][y_stride]            ACT_TYPE, elements Q*D.. are zeroed
// grid (T, Q); teams of D / 4 lanes take every so many-th split, and add up in their order.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/attention.params.h"

layout(constant_id = 1) const uint kActType = 0;
layout(constant_id = 2) const uint kHeadDim = 64;
layout(constant_id = 3) const uint kSplitsMax = 128;
layout(push_constant, scalar) uniform Push { AttentionParams p; };

const uint kLanes = kHeadDim / 4;
const uint kTeams = gl_WorkGroupSize.x / kLanes;
shared float shares[kSplitsMax];  // the splits' maxima, then what their results count
shared float sums[kSplitsMax];
shared vec4 team_sums[kTeams * kLanes];

void main() {
    const uint t = gl_WorkGroupID.x, head = gl_WorkGroupID.y, thread = gl_LocalInvocationIndex;
    const uint n_rows = step_n_rows(p.step);
    const uint64_t line = p.partials + (uint64_t(t) * gl_NumWorkGroups.y + head) * p.n_splits * ((kHeadDim + 4) * 4);
    for (uint s = thread; s < p.n_splits; s += gl_WorkGroupSize.x) {
        const vec2 marks = Vec2Ref(line + s * ((kHeadDim + 4) * 4)).v;
        shares[s] = marks.x;
        sums[s] = marks.y;
    }
    barrier();
    if (t >= n_rows) return;  // not before: what is loaded above need not wait for their number
    float top = -1.0 / 0.0, total = 0.0;
    for (uint s = 0; s < p.n_splits; s++) top = max(top, shares[s]);
    for (uint s = 0; s < p.n_splits; s++) total = fma(sums[s], exp(shares[s] - top), total);
    const uint team = thread / kLanes, lane = thread % kLanes;
    if (team < kTeams) {
        vec4 sum = vec4(0.0);
        for (uint s = team; s < p.n_splits; s += kTeams)
            sum = fma(Vec4Ref(line + s * ((kHeadDim + 4) * 4) + 16 + lane * 16).v, vec4(exp(shares[s] - top)), sum);
        team_sums[thread] = sum;
    }
    barrier();
    const uint64_t y = p.y + uint64_t(t) * p.y_stride * bytes_of(kActType);
    for (uint i = thread; i < kLanes; i += gl_WorkGroupSize.x) {
        vec4 sum = vec4(0.0);
        for (uint m = 0; m < kTeams; m++) sum += team_sums[m * kLanes + i];
        store4(y, head * kLanes + i, sum / total, kActType);
    }
    if (head != 0) return;
    for (uint i = gl_NumWorkGroups.y * kLanes + thread; i < p.y_stride / 4; i += gl_WorkGroupSize.x) store4(y, i, vec4(0.0), kActType);
}
