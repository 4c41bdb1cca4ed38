// fragments = rows, of a 16-bit type (activation_fragments.h). A thread has a lane's 16 bytes of one fragment.
// grid (columns / 16 over the workgroup's subgroups, fragments of rows); moves 2 bytes per element in and out.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/products/activation_fragments.h"
#include "gpu/kernels/products/arrange_fragments.params.h"

layout(constant_id = 1) const uint kOrder = 0;
layout(push_constant, scalar) uniform Push { ArrangeFragmentsParams p; };

void main() {
    const uint thread = gl_GlobalInvocationID.x, column = thread / 32 * kFragmentColumns, row0 = gl_WorkGroupID.y * kFragmentRows;
    if (column >= p.stride || row0 >= UintRef(p.n_rows).v) return;
    const uint row = row0 + thread % 32 / 4, pair = column + thread % 4 * 2;
    uint words[4];
    [[unroll]] for (uint i = 0; i < 4; ++i) words[i] = UintRef(p.rows + 2 * (uint64_t(row + i / 2 * 8) * p.stride + pair + i % 2 * 8)).v;
    const uvec4 by_columns = uvec4(words[0], words[1], words[2], words[3]);
    if (kOrder == kMatrixFragments) {
        [[unroll]] for (uint i = 0; i < 4; ++i)
            UintRef(p.fragments + fragment_offset(row + i / 2 * 8, pair + i % 2 * 8, p.stride, kOrder)).v = words[i];
        return;
    }
    Uvec4Ref(p.fragments + fragment_offset(row, pair, p.stride, kOrder)).v = kOrder == kFragmentsByRows ? by_columns.xzyw : by_columns;
}
