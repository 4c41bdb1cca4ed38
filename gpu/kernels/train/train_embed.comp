// train_embed: x[t] = table[token[t]], padding zeroed
// grid (rows)
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/train/train_rows.params.h"

layout(constant_id = 1) const uint kTableType = 0;
layout(constant_id = 2) const uint kTransposed = 0;  // 1: the table is [hidden][vocab]
layout(push_constant, scalar) uniform Push { TrainEmbedParams p; };

void main() {
    uint t = gl_WorkGroupID.x;
    uint token = UintRef(p.tokens + uint64_t(t) * 4).v;
    uint64_t row = p.table + (kTransposed != 0 ? 0 : uint64_t(token) * p.table_stride * bytes_of(kTableType));
    for (uint h = gl_LocalInvocationIndex; h < p.x_stride; h += gl_WorkGroupSize.x) {
        FloatRef(p.x + (uint64_t(t) * p.x_stride + h) * 4).v = h >= p.hidden ? 0.0 : kTransposed != 0 ? load1(row + uint64_t(h) * p.table_stride * bytes_of(kTableType), token, kTableType) : load1(row, h, kTableType);
    }
}
