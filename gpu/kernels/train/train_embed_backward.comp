// train_embed_backward: dtable[token][h] += sum over the rows in which the token stands of dx[row][h], in the rows' order
// grid (distinct tokens, ceil(hidden / workgroup))
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/train/train_rows.params.h"

layout(constant_id = 1) const uint kTransposed = 0;  // 1: the table is [hidden][vocab]
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer TokenRowsRef { TrainTokenRows v; };
layout(push_constant, scalar) uniform Push { TrainEmbedBackwardParams p; };

void main() {
    TrainTokenRows token = TokenRowsRef(p.tokens + uint64_t(gl_WorkGroupID.x) * 12).v;
    uint h = gl_WorkGroupID.y * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
    if (h >= p.hidden) return;
    uint64_t at = kTransposed != 0 ? uint64_t(h) * p.table_stride + token.token : uint64_t(token.token) * p.table_stride + h;
    FloatRef to = FloatRef(p.dtable + at * 4);
    float sum = to.v;
    for (uint i = 0; i < token.n; i++) {
        uint row = UintRef(p.rows + uint64_t(token.begin + i) * 4).v;
        sum += FloatRef(p.dx + (uint64_t(row) * p.x_stride + h) * 4).v;
    }
    to.v = sum;
}
