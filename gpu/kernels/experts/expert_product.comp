// expert_product: y[pair][i] = w[expert of pair][i] . x[row of pair]
//   w  [experts * n][w_stride]  WEIGHT_TYPE
//   x  [row][w_stride]          ACT_TYPE
//   y  [pair][y_stride]         f32
// A workgroup takes a tile of up to COLS pairs of one expert. A subgroup takes ROWS neighbouring rows of w; its lanes
// stride over k in chunks of 8 and add theirs in order: the bits do not depend on ROWS, COLS or the other pairs of the
// tile.
// grid (tiles at most, any): subgroups loop until all rows of w are done. Moves each expert's matrix once for each of
// its tiles.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/experts/expert_route.params.h"
#include "gpu/kernels/experts/expert_product.params.h"

layout(constant_id = 1) const uint kWeightType = 0;
layout(constant_id = 2) const uint kActType = 0;
layout(constant_id = 3) const uint kCols = 1;  // the tiles' rows
layout(constant_id = 4) const uint kRows = 2;
layout(push_constant, scalar) uniform Push { ExpertProductParams p; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer ExpertTileRef { ExpertTile v; };

void main() {
    if (gl_WorkGroupID.x >= UintRef(p.n_tiles).v) return;
    const ExpertTile tile = ExpertTileRef(p.tiles + uint64_t(gl_WorkGroupID.x) * 16).v;
    const uint64_t w_row_bytes = uint64_t(p.w_stride) * bytes_of(kWeightType);
    const uint64_t w_base = p.w + uint64_t(tile.expert) * p.n * w_row_bytes;
    const uint n_chunks = p.w_stride / 8;
    uint pair[kCols];
    uint64_t x[kCols];
    [[unroll]] for (uint j = 0; j < kCols; j++) {
        pair[j] = UintRef(p.sorted + uint64_t(tile.begin + min(j, tile.n - 1)) * 4).v;
        x[j] = p.x + uint64_t(pair[j] / p.pairs_of_a_row) * p.w_stride * bytes_of(kActType);
    }
    const uint step = gl_NumWorkGroups.y * gl_NumSubgroups * kRows;
    for (uint n0 = (gl_WorkGroupID.y * gl_NumSubgroups + gl_SubgroupID) * kRows; n0 < p.n; n0 += step) {
        uint64_t w[kRows];
        float acc[kRows][kCols];
        [[unroll]] for (uint i = 0; i < kRows; i++) {
            w[i] = w_base + uint64_t(min(n0 + i, p.n - 1)) * w_row_bytes;
            [[unroll]] for (uint j = 0; j < kCols; j++) acc[i][j] = 0.0;
        }
        for (uint chunk = gl_SubgroupInvocationID; chunk < n_chunks; chunk += gl_SubgroupSize) {
            Eight a[kRows];
            [[unroll]] for (uint i = 0; i < kRows; i++) a[i] = load8(w[i], chunk, kWeightType);
            [[unroll]] for (uint j = 0; j < kCols; j++) {
                if (j >= tile.n) break;
                const Eight b = load8(x[j], chunk, kActType);
                [[unroll]] for (uint i = 0; i < kRows; i++) acc[i][j] = dot8(a[i], b, acc[i][j]);
            }
        }
        [[unroll]] for (uint i = 0; i < kRows; i++) {
            [[unroll]] for (uint j = 0; j < kCols; j++) {
                const float sum = subgroupAdd(acc[i][j]);
                if (subgroupElect() && n0 + i < p.n && j < tile.n) FloatRef(p.y + (uint64_t(pair[j]) * p.y_stride + n0 + i) * 4).v = sum;
            }
        }
    }
}
