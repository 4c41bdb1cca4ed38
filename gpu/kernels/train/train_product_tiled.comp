// train_product through shared memory: c[i][j] (+)= alpha * sum over l of a[i][l] * b[l][j]
//   a  [m][k], b [k][n] by strides, of A_TYPE and B_TYPE;  c [m][n] by strides, f32
// A workgroup of 256 has 64 x 64 of c, an invocation 4 x 4 of these; both operands are staged 16 l at a time. Sums run
// in order of l.
// grid (ceil(n / 64), ceil(m / 64), items)
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/train/train_product.params.h"

layout(constant_id = 1) const uint kAType = 0;
layout(constant_id = 2) const uint kBType = 0;
layout(constant_id = 3) const uint kAdds = 0;  // 1: c is added to
layout(constant_id = 4) const uint kAAlongK = 1;  // neighbours of a in memory have neighbouring l, else neighbouring i
layout(constant_id = 5) const uint kBAlongK = 1;  // the same of b, else neighbouring j
layout(push_constant, scalar) uniform Push { TrainProductParams p; };
#include "gpu/kernels/train/train_product.glsl"

const uint kTile = 64, kDepth = 16, kLine = kTile + 4;
shared float a_tile[kDepth * kLine];
shared float b_tile[kDepth * kLine];

void main() {
    TrainProductItem item = workgroup_product();
    uint i0 = gl_WorkGroupID.y * kTile, j0 = gl_WorkGroupID.x * kTile;
    if (i0 >= item.m || j0 >= item.n) return;
    uint thread = gl_LocalInvocationIndex;
    uint ai = kAAlongK != 0 ? thread / 4 : thread % 16 * 4, al = kAAlongK != 0 ? thread % 4 * 4 : thread / 16;
    uint bj = kBAlongK != 0 ? thread / 4 : thread % 16 * 4, bl = kBAlongK != 0 ? thread % 4 * 4 : thread / 16;
    uint row = thread / 16 * 4, column = thread % 16 * 4;
    vec4 acc[4];
    [[unroll]] for (uint r = 0; r < 4; r++) acc[r] = vec4(0.0);
    for (uint l0 = 0; l0 < item.k; l0 += kDepth) {
        [[unroll]] for (uint e = 0; e < 4; e++) {
            uint i = kAAlongK != 0 ? ai : ai + e, l = kAAlongK != 0 ? al + e : al;
            bool inside = i0 + i < item.m && l0 + l < item.k;
            a_tile[l * kLine + i] = inside ? load_at(p.a, item.a + uint64_t(i0 + i) * p.a_i + uint64_t(l0 + l) * p.a_l, kAType) : 0.0;
            uint j = kBAlongK != 0 ? bj : bj + e;
            l = kBAlongK != 0 ? bl + e : bl;
            inside = j0 + j < item.n && l0 + l < item.k;
            b_tile[l * kLine + j] = inside ? load_at(p.b, item.b + uint64_t(l0 + l) * p.b_l + uint64_t(j0 + j) * p.b_j, kBType) : 0.0;
        }
        barrier();
        for (uint l = 0; l < kDepth; l++) {
            uint at = l * kLine + column;
            vec4 b = vec4(b_tile[at], b_tile[at + 1], b_tile[at + 2], b_tile[at + 3]);
            [[unroll]] for (uint r = 0; r < 4; r++) acc[r] = fma(vec4(a_tile[l * kLine + row + r]), b, acc[r]);
        }
        barrier();
    }
    [[unroll]] for (uint r = 0; r < 4; r++) {
        [[unroll]] for (uint e = 0; e < 4; e++) {
            uint i = i0 + row + r, j = j0 + column + e;
            if (i < item.m && j < item.n) store_product(item.c + uint64_t(i) * p.c_i + uint64_t(j) * p.c_j, acc[r][e], kAdds);
        }
    }
}
