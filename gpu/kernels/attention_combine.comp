// attention_combine: joins the splits of attention: y = sum_s exp(max_s - max) result_s / sum_s exp(max_s - max) sum_s
//   partials [T][Q][SPLITS][4 + D]  f32: max, sum, 0, 0, result; a split without tokens has max -inf and sum 0
//   y        [T][y_stride]          ACT_TYPE, elements Q*D.. are zeroed
// grid (T, ceil(y_stride / 4 / workgroup)); four elements per thread.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/attention.params.h"

layout(constant_id = 1) const uint kActType = 0;
layout(constant_id = 2) const uint kHeadDim = 64;
layout(constant_id = 3) const uint kHeads = 1;
layout(constant_id = 4) const uint kSplits = 2;
layout(push_constant, scalar) uniform Push { AttentionParams p; };

void main() {
    uint t = gl_WorkGroupID.x;
    uint chunk = gl_WorkGroupID.y * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
    if (t >= step_n_rows(p.step) || chunk * 4 >= p.y_stride) return;
    uint head = chunk * 4 / kHeadDim;
    vec4 sum = vec4(0.0);
    if (head < kHeads) {
        uint64_t line = p.partials + (uint64_t(t) * kHeads + head) * kSplits * (kHeadDim + 4) * 4;
        vec2 marks[kSplits];
        float top = -1.0 / 0.0;
        for (uint s = 0; s < kSplits; s++) {
            marks[s] = Vec2Ref(line + s * (kHeadDim + 4) * 4).v;
            top = max(top, marks[s].x);
        }
        float total = 0.0;
        for (uint s = 0; s < kSplits; s++) {
            float share = exp(marks[s].x - top);
            vec4 part = Vec4Ref(line + s * (kHeadDim + 4) * 4 + 16 + chunk * 16 % (kHeadDim * 4)).v;
            sum = fma(part, vec4(share), sum);
            total = fma(marks[s].y, share, total);
        }
        sum /= total;
    }
    store4(p.y + uint64_t(t) * p.y_stride * bytes_of(kActType), chunk, sum, kActType);
}
