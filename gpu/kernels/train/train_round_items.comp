// train_round_items: to[t][c] = factor * from[t][c] of many matrices, in 16 bits of type TO; an invocation has a quad, four
// columns of a row.
// grid (x, y), together ceil(quads of all items / workgroup); moves 6 bytes a number
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/train/train_rows.params.h"

layout(constant_id = 1) const uint kTo = 1;
layout(push_constant, scalar) uniform Push { TrainRoundItemsParams p; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer RoundItemRef { TrainRoundItem v; };

const uint kItemBytes = 40, kFirstByte = 36;

uint first_of(uint item) { return UintRef(p.items + uint64_t(item) * kItemBytes + kFirstByte).v; }

// The last item that begins at the quad or before it.
uint item_of(uint quad) {
    uint low = 0, high = p.n_items;
    while (high - low > 1) {
        const uint middle = (low + high) / 2;
        if (first_of(middle) <= quad) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

void main() {
    const uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    const uint quad = group * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
    if (quad >= p.n_quads) return;
    const TrainRoundItem item = RoundItemRef(p.items + uint64_t(item_of(quad)) * kItemBytes).v;
    const uint of_row = item.columns / 4, index = quad - item.first, row = index / of_row, column = index % of_row;
    const vec4 v = item.factor * Vec4Ref(item.from + (uint64_t(row) * item.from_stride + column * 4) * 4).v;
    store4(item.to + uint64_t(row) * item.to_stride * 2, column, bounded(v, kTo), kTo);
}
