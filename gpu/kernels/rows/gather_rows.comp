// gather_rows: to[t] = from[logit_rows[t].row], rows of 16-byte words.
// grid (T); one workgroup per row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/rows/gather_rows.params.h"

layout(push_constant, scalar) uniform Push { GatherRowsParams p; };

void main() {
    const uint t = gl_WorkGroupID.x;
    if (t >= UintRef(p.n_rows).v) return;
    const uint64_t from = p.from + uint64_t(LogitRowRef(p.logit_rows + uint64_t(t) * 8).v.row) * p.n_words * 16;
    const uint64_t to = p.to + uint64_t(t) * p.n_words * 16;
    for (uint i = gl_LocalInvocationIndex; i < p.n_words; i += gl_WorkGroupSize.x) Uvec4Ref(to + uint64_t(i) * 16).v = Uvec4Ref(from + uint64_t(i) * 16).v;
}
