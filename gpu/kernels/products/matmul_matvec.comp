// matmul, few rows: y[s][t][n] = sum over the k range of split s of x[t][k] * w[n][k]
//   w  [n_padded][w_stride]  WEIGHT_TYPE, or a packed part (weight_format.h)
//   x  [T][x_stride]         ACT_TYPE
//   y  [S][T][y_stride]      f32
// A subgroup takes ROWS neighbouring rows of w and COLS rows of x; its lanes stride over k in chunks of 8, so that
// neighbouring lanes load neighbouring 16 bytes. Every lane adds its chunks in order: the bits do not depend on ROWS or
// COLS.
// grid (any, ceil(T / COLS), S): subgroups loop until all rows of w are done.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/formats/weights.glsl"
#include "gpu/kernels/products/matmul.params.h"

layout(constant_id = 1) const uint kWeightType = 0;
layout(constant_id = 2) const uint kActType = 0;
layout(constant_id = 3) const uint kCols = 1;
layout(constant_id = 4) const uint kRows = 2;
layout(push_constant, scalar) uniform Push { MatmulParams p; };

const uint kUnroll = 2;

// Eight weights of the row that begins at `w` where weights are plain.
Eight load_w(uint64_t w, uint row, uint first_chunk, uint chunk) {
    if (is_packed_weight(kWeightType)) return load8_packed(p.w, row, first_chunk + chunk, p.w_stride, kWeightType);
    return load8(w, chunk, kWeightType);
}

void main() {
    uint n_rows = UintRef(p.n_rows).v;
    uint t0 = gl_WorkGroupID.y * kCols;
    if (t0 >= n_rows) return;
    uint split = gl_WorkGroupID.z;
    uint k_begin = split * p.k_per_split;
    uint n_chunks = (min(k_begin + p.k_per_split, p.w_stride) - k_begin) / 8;
    uint64_t w_row_bytes = uint64_t(p.w_stride) * bytes_of(kWeightType);
    uint64_t w_base = p.w + uint64_t(k_begin) * bytes_of(kWeightType);
    uint64_t x[kCols];
    [[unroll]] for (uint j = 0; j < kCols; j++) {
        x[j] = p.x + (uint64_t(min(t0 + j, n_rows - 1)) * p.x_stride + k_begin) * bytes_of(kActType);
    }

    uint step = gl_NumWorkGroups.x * gl_NumSubgroups * kRows;
    for (uint n0 = (gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID) * kRows; n0 < p.n; n0 += step) {
        uint64_t w[kRows];
        float acc[kRows][kCols];
        [[unroll]] for (uint i = 0; i < kRows; i++) {
            w[i] = w_base + uint64_t(min(n0 + i, p.n - 1)) * w_row_bytes;
            [[unroll]] for (uint j = 0; j < kCols; j++) acc[i][j] = 0.0;
        }
        uint chunk = gl_SubgroupInvocationID;
        for (; chunk + (kUnroll - 1) * gl_SubgroupSize < n_chunks; chunk += kUnroll * gl_SubgroupSize) {
            Eight a[kUnroll][kRows];
            [[unroll]] for (uint u = 0; u < kUnroll; u++) {
                [[unroll]] for (uint i = 0; i < kRows; i++) a[u][i] = load_w(w[i], min(n0 + i, p.n - 1), k_begin / 8, chunk + u * gl_SubgroupSize);
            }
            [[unroll]] for (uint u = 0; u < kUnroll; u++) {
                [[unroll]] for (uint j = 0; j < kCols; j++) {
                    Eight b = load8(x[j], chunk + u * gl_SubgroupSize, kActType);
                    [[unroll]] for (uint i = 0; i < kRows; i++) acc[i][j] = dot8(a[u][i], b, acc[i][j]);
                }
            }
        }
        for (; chunk < n_chunks; chunk += gl_SubgroupSize) {
            Eight a[kRows];
            [[unroll]] for (uint i = 0; i < kRows; i++) a[i] = load_w(w[i], min(n0 + i, p.n - 1), k_begin / 8, chunk);
            [[unroll]] for (uint j = 0; j < kCols; j++) {
                Eight b = load8(x[j], chunk, kActType);
                [[unroll]] for (uint i = 0; i < kRows; i++) acc[i][j] = dot8(a[i], b, acc[i][j]);
            }
        }
        [[unroll]] for (uint i = 0; i < kRows; i++) {
            [[unroll]] for (uint j = 0; j < kCols; j++) {
                float sum = subgroupAdd(acc[i][j]);
                if (subgroupElect() && n0 + i < p.n && t0 + j < n_rows) {
                    uint64_t at = uint64_t(split) * p.split_stride + uint64_t(t0 + j) * p.y_stride + n0 + i;
                    FloatRef(p.y + at * 4).v = sum;
                }
            }
        }
    }
}
