// expert_product: y[pair][i] = w[expert of pair][i] . x[row of pair]; with kGated what gate and up become (expert_act)
//   w  [experts * n][w_stride]  WEIGHT_TYPE, or a packed part of so many rows (weight_format.h)
//   x  [row][w_stride]          ACT_TYPE
//   y  [pair][y_stride]         f32, gated ACT_TYPE
// A workgroup takes a tile of up to COLS pairs of one expert. A subgroup takes ROWS neighbouring rows of w; its lanes
// stride over k in chunks of 8 and add theirs in order: the bits do not depend on ROWS, COLS or the other pairs of the
// tile.
// grid (tiles at most, any): subgroups loop until all rows of w are done. Moves each expert's matrix once for each of
// its tiles.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/formats/weights.glsl"
#include "gpu/kernels/experts/expert_route.params.h"
#include "gpu/kernels/experts/expert_product.params.h"
#include "gpu/kernels/rows/activation.glsl"

layout(constant_id = 1) const uint kWeight = 0;  // WeightKind::constant()
layout(constant_id = 2) const uint kActType = 0;
layout(constant_id = 3) const uint kCols = 1;  // the tiles' rows
layout(constant_id = 4) const uint kRows = 2;  // gated: 4, of two neighbouring outputs
layout(constant_id = 5) const uint kGated = 0;
layout(constant_id = 6) const uint kActivation = 0;
layout(constant_id = 7) const uint kClamped = 0;
layout(constant_id = 8) const uint kInterleaved = 0;
layout(constant_id = 9) const uint kHasBias = 0;
#include "gpu/kernels/experts/expert_gate.glsl"
layout(push_constant, scalar) uniform Push { ExpertProductParams p; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer ExpertTileRef { ExpertTile v; };

const uint kOutputs = kGated != 0 ? kRows / 2 : kRows;  // of a subgroup

// The row of w that is the subgroup's row i, from output n0 on; gated: gates, then their ups.
uint row_of(uint n0, uint i) {
    if (kGated == 0) return min(n0 + i, p.n - 1);
    const uint f = min(n0 + i % kOutputs, p.n / 2 - 1), part = i / kOutputs;
    return kInterleaved != 0 ? 2 * f + part : part * (p.n / 2) + f;
}

// Weights 8 chunk .. + 7 of a row, which lies at `at` unless w is packed.
Eight weights_of(uint64_t at, uint row, uint chunk) {
    return is_packed_weight(kWeight) ? load8_packed(p.w, row, chunk, p.w_stride, kWeight) : load8(at, chunk, format_in(kWeight));
}

const uint kFirstUp = kRows > 2 ? 2 : 0;
void store_gated(uint pair, uint expert, uint n0, float sums[kRows]) {
    float value[2];
    [[unroll]] for (uint i = 0; i < 2; i++) {
        const uint gate_row = row_of(n0, i), up_row = row_of(n0, kFirstUp + i);
        float gate = sums[i], up = sums[kFirstUp + i];
        if (kHasBias != 0) {
            gate += FloatRef(p.bias + (uint64_t(expert) * p.n + gate_row) * 4).v;
            up += FloatRef(p.bias + (uint64_t(expert) * p.n + up_row) * 4).v;
        }
        value[i] = n0 + i < p.n / 2 ? gated(gate, up, p.alpha, p.limit) : 0.0;
    }
    const uint64_t y = p.y + (uint64_t(pair) * p.y_stride + n0) * bytes_of(kActType);
    if (kActType == 0) Vec2Ref(y).v = vec2(value[0], value[1]);
    else UintRef(y).v = pack_pair(vec2(value[0], value[1]), kActType);
}

void main() {
    if (gl_WorkGroupID.x >= UintRef(p.n_tiles).v) return;
    const ExpertTile tile = ExpertTileRef(p.tiles + uint64_t(gl_WorkGroupID.x) * 16).v;
    const uint64_t w_row_bytes = uint64_t(p.w_stride) * bytes_of(format_in(kWeight));
    const uint first_row = tile.expert * p.n;
    const uint n_chunks = p.w_stride / 8;
    uint pair[kCols];
    uint64_t x[kCols];
    [[unroll]] for (uint j = 0; j < kCols; j++) {
        pair[j] = UintRef(p.sorted + uint64_t(tile.begin + min(j, tile.n - 1)) * 4).v;
        x[j] = p.x + uint64_t(pair[j] / p.pairs_per_row) * p.w_stride * bytes_of(kActType);
    }
    const uint step = gl_NumWorkGroups.y * gl_NumSubgroups * kOutputs, end = kGated != 0 ? p.y_stride : p.n;
    for (uint n0 = (gl_WorkGroupID.y * gl_NumSubgroups + gl_SubgroupID) * kOutputs; n0 < end; n0 += step) {
        uint row[kRows];
        uint64_t w[kRows];
        float acc[kRows][kCols];
        [[unroll]] for (uint i = 0; i < kRows; i++) {
            row[i] = first_row + row_of(n0, i);
            w[i] = p.w + uint64_t(row[i]) * w_row_bytes;
            [[unroll]] for (uint j = 0; j < kCols; j++) acc[i][j] = 0.0;
        }
        for (uint chunk = gl_SubgroupInvocationID; chunk < n_chunks; chunk += gl_SubgroupSize) {
            Eight a[kRows];
            [[unroll]] for (uint i = 0; i < kRows; i++) a[i] = weights_of(w[i], row[i], chunk);
            [[unroll]] for (uint j = 0; j < kCols; j++) {
                if (j >= tile.n) break;
                const Eight b = load8(x[j], chunk, kActType);
                [[unroll]] for (uint i = 0; i < kRows; i++) acc[i][j] = dot8(a[i], b, acc[i][j]);
            }
        }
        if (kGated != 0) {
            [[unroll]] for (uint j = 0; j < kCols; j++) {
                float sums[kRows];
                [[unroll]] for (uint i = 0; i < kRows; i++) sums[i] = subgroupAdd(acc[i][j]);
                if (subgroupElect() && j < tile.n) store_gated(pair[j], tile.expert, n0, sums);
            }
            continue;
        }
        [[unroll]] for (uint i = 0; i < kRows; i++) {
            [[unroll]] for (uint j = 0; j < kCols; j++) {
                const float sum = subgroupAdd(acc[i][j]);
                if (subgroupElect() && n0 + i < p.n && j < tile.n) FloatRef(p.y + (uint64_t(pair[j]) * p.y_stride + n0 + i) * 4).v = sum;
            }
        }
    }
}
