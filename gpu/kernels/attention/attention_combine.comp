// attention_combine: joins the splits of attention: y = sum_s exp(max_s - max) result_s / sum_s exp(max_s - max) sum_s
//   partials [T][Q][n_splits][4 + D]  f32: max, sum, 0, 0, result; a split without tokens has sum 0 and a max far below
//       any score, or -inf
//   y        [T][y_stride]            ACT_TYPE, elements Q*D.. are zeroed
// grid (T, Q); teams of D / 4 lanes take every so many-th split. All loads of up to kInFlight splits of a team are
// issued at once, and each team has its own maximum, so that there is usually one round trip to memory and one barrier.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/attention/attention.params.h"

layout(constant_id = 1) const uint kActType = 0;
layout(constant_id = 2) const uint kHeadDim = 64;
layout(constant_id = 3) const uint kInFlight = 4;
layout(push_constant, scalar) uniform Push { AttentionParams p; };

const uint kLanes = kHeadDim / 4;
const uint kTeams = gl_WorkGroupSize.x / kLanes;
const float kNone = -1e30;  // below the maximum of any split with tokens
shared vec4 team_sums[kTeams * kLanes];
shared vec2 team_marks[kTeams];  // maximum, and the sum to it

void main() {
    const uint t = gl_WorkGroupID.x, head = gl_WorkGroupID.y, thread = gl_LocalInvocationIndex;
    const uint n_rows = step_n_rows(p.step);
    if (leaves_at_once(false, gl_NumWorkGroups.x, t, n_rows)) return;
    const uint64_t line = p.partials + (uint64_t(t) * gl_NumWorkGroups.y + head) * p.n_splits * ((kHeadDim + 4) * 4);
    const uint team = thread / kLanes, lane = thread % kLanes;
    if (team < kTeams) {
        float top = kNone, total = 0.0;
        vec4 sum = vec4(0.0);
        for (uint first = team; first < p.n_splits; first += kInFlight * kTeams) {
            vec2 marks[kInFlight];
            vec4 results[kInFlight];
            float higher = top;
            [[unroll]] for (uint i = 0; i < kInFlight; i++) {
                const uint64_t at = line + min(first + i * kTeams, p.n_splits - 1) * ((kHeadDim + 4) * 4);
                marks[i] = Vec2Ref(at).v;
                results[i] = Vec4Ref(at + 16 + lane * 16).v;
            }
            [[unroll]] for (uint i = 0; i < kInFlight; i++) higher = max(higher, marks[i].x);
            const float fade = exp(top - higher);
            top = higher;
            total *= fade;
            sum *= fade;
            [[unroll]] for (uint i = 0; i < kInFlight; i++) {
                const float share = first + i * kTeams < p.n_splits ? exp(marks[i].x - top) : 0.0;
                total = fma(marks[i].y, share, total);
                sum = fma(results[i], vec4(share), sum);
            }
        }
        team_sums[thread] = sum;
        if (lane == 0) team_marks[team] = vec2(top, total);
    }
    barrier();
    if (t >= n_rows) return;  // not before: what is loaded above need not wait for their number
    const uint64_t y = p.y + uint64_t(t) * p.y_stride * bytes_of(kActType);
    for (uint i = thread; i < kLanes; i += gl_WorkGroupSize.x) {
        float top = kNone, total = 0.0;
        [[unroll]] for (uint m = 0; m < kTeams; m++) top = max(top, team_marks[m].x);
        vec4 sum = vec4(0.0);
        [[unroll]] for (uint m = 0; m < kTeams; m++) {
            const float share = exp(team_marks[m].x - top);
            total = fma(team_marks[m].y, share, total);
            sum = fma(team_sums[m * kLanes + i], vec4(share), sum);
        }
        store4(y, head * kLanes + i, sum / total, kActType);
    }
    if (head != 0) return;
    for (uint i = gl_NumWorkGroups.y * kLanes + thread; i < p.y_stride / 4; i += gl_WorkGroupSize.x) store4(y, i, vec4(0.0), kActType);
}
