// train_round, in 16 bits of type TO:
//   rows    to[t][c] = factor * from[t][c] of f32, four columns an invocation;
//           grid (ceil(columns / 4 / workgroup), rows)
//   fragments  rows of f32 or TO in the order kFragmentsByRows (products/activation_fragments.h), zero behind their
//           columns. A thread has a lane's 16 bytes of one fragment; rows of a fragment behind the last one are zero.
//           grid (ceil(fragments of a row * 32 / workgroup), fragments of rows)
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/products/activation_fragments.h"
#include "gpu/kernels/train/train_rows.params.h"

layout(constant_id = 1) const uint kTo = 1;
layout(constant_id = 2) const uint kInFragments = 0;
layout(constant_id = 3) const uint kType = 0;  // of the rows that become fragments
layout(push_constant, scalar) uniform Push { TrainRoundKernelParams p; };

// Columns `column` and the next one, which may both be behind the last one. Rows begin at multiples of 16 bytes, and
// `column` is even.
uint pair_at(uint row, uint column) {
    if (row >= p.rows || column >= p.columns) return 0;
    const uint64_t index = uint64_t(row) * p.from_stride + column;
    if (kType != 0) {
        const uint word = UintRef(p.from + index * 2).v;
        return column + 1 < p.columns ? word : word & 0xffffu;
    }
    vec2 pair = Vec2Ref(p.from + index * 4).v;
    if (column + 1 >= p.columns) pair.y = 0.0;
    return pack_pair(bounded(vec4(pair, 0.0, 0.0), kTo).xy, kTo);
}

void main() {
    const uint thread = gl_GlobalInvocationID.x;
    if (kInFragments == 0) {
        const uint t = gl_WorkGroupID.y;
        if (thread * 4 >= p.columns) return;
        const vec4 v = p.factor * Vec4Ref(p.from + (uint64_t(t) * p.from_stride + thread * 4) * 4).v;
        store4(p.to + uint64_t(t) * p.to_stride * 2, thread, bounded(v, kTo), kTo);
        return;
    }
    const uint column = thread / 32 * kFragmentColumns, row = gl_WorkGroupID.y * kFragmentRows + thread % 32 / 4, first = column + thread % 4 * 2;
    if (column >= p.to_stride) return;
    const uvec4 words = uvec4(pair_at(row, first), pair_at(row + 8, first), pair_at(row, first + 8), pair_at(row + 8, first + 8));
    Uvec4Ref(p.to + fragment_offset(row, first, p.to_stride, kFragmentsByRows)).v = words;
}
