// ple_gate: act[t][c] = gelu(sum_s y[s][t][c]) * ple[t][c]
//   y [S][T][y_stride] f32;  ple [T][ple_stride] f32;  act [T][act_stride] ACT_TYPE, elements n.. are zeroed
// grid (ceil(act_stride / 4 / workgroup), T); four elements per thread; moves 4 (S + 1) n in and 2-4 n out, per row. n
// is a multiple of 4.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/rows/activation.glsl"
#include "gpu/kernels/rows/ple.params.h"

layout(constant_id = 1) const uint kActType = 0;
layout(constant_id = 2) const uint kSplits = 1;
layout(constant_id = 3) const uint kWholeRows = 0;  // the first rows' sums are all in split 0
layout(push_constant, scalar) uniform Push { PleGateParams p; };

const uint kGelu = 1;

void main() {
    const uint t = gl_WorkGroupID.y, chunk = gl_GlobalInvocationID.x;
    if (t >= step_n_rows(p.step) || chunk * 4 >= p.act_stride) return;
    vec4 value = vec4(0.0);
    if (chunk * 4 < p.n) {
        const uint64_t y = p.y + uint64_t(t) * p.y_stride * 4;
        vec4 sum = load4(y, chunk, 0);
        if (t >= kWholeRows) {
            for (uint s = 1; s < kSplits; s++) sum += load4(y + uint64_t(s) * p.split_stride * 4, chunk, 0);
        }
        for (uint c = 0; c < 4; c++) value[c] = activate(sum[c], kGelu);
        value *= load4(p.ple + uint64_t(t) * p.ple_stride * 4, chunk, 0);
    }
    store4(p.act + uint64_t(t) * p.act_stride * bytes_of(kActType), chunk, value, kActType);
}
