// gate_rows: y[t][h][d] *= sigmoid(gate[t][h][d]), in place
//   gate  f32;  y  ACT_TYPE
// grid (ceil(width / 4 / workgroup), T); four elements for each thread, of one head; moves 4 bytes an element for the
// gate, 4-8 for y.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/mixers/gate_rows.params.h"

layout(constant_id = 1) const uint kActType = 0;
layout(constant_id = 2) const uint kSize = 16;  // of a head, a multiple of 4
layout(push_constant, scalar) uniform Push { GateRowsParams p; };

void main() {
    const uint t = gl_WorkGroupID.y, element = gl_GlobalInvocationID.x * 4;
    const uint n_rows = gl_NumWorkGroups.y > 1 ? step_n_rows(p.step) : 1;
    if (t >= n_rows || element >= p.width) return;
    const vec4 gate = load4_f32(p.gate + uint64_t(t) * p.gate_stride * 4, element / kSize * p.gate_head + element % kSize, false);
    const uint64_t y = p.y + uint64_t(t) * p.y_stride * bytes_of(kActType);
    store4(y, element / 4, load4(y, element / 4, kActType) / (1.0 + exp(-gate)), kActType);
}
