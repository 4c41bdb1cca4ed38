// matmul for processors without wide memory: y[s][t][n] = sum over the k range of split s of x[t][k] * w[n][k]
//   w  [n_padded][w_stride]  WEIGHT_TYPE, or a packed part (weight_format.h)
//   x  [T][x_stride]         ACT_TYPE
//   y  [S][T][y_stride]      f32
// One invocation takes one row of w and COLS rows of x, so that x is the same for all lanes (one scalar load each) and
// no lane waits for another. Chunks of 8 are added in order of k.
// grid (ceil(n / workgroup), ceil(T / COLS), S)
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/formats/weights.glsl"
#include "gpu/kernels/products/matmul.params.h"

layout(constant_id = 1) const uint kWeightType = 0;
layout(constant_id = 2) const uint kActType = 0;
layout(constant_id = 3) const uint kCols = 1;
layout(push_constant, scalar) uniform Push { MatmulParams p; };

void main() {
    uint n_rows = gl_NumWorkGroups.y * kCols == 1 ? 1 : UintRef(p.n_rows).v;
    uint t0 = gl_WorkGroupID.y * kCols;
    uint n = gl_GlobalInvocationID.x;
    if (t0 >= n_rows || n >= p.n) return;
    uint split = gl_WorkGroupID.z;
    uint k_begin = split * p.k_per_split;
    uint n_chunks = (min(k_begin + p.k_per_split, p.w_stride) - k_begin) / 8;
    uint64_t w = p.w + (uint64_t(n) * p.w_stride + k_begin) * bytes_of(kWeightType);
    uint64_t x = p.x + (uint64_t(t0) * p.x_stride + k_begin) * bytes_of(kActType);
    uint64_t x_row_bytes = uint64_t(p.x_stride) * bytes_of(kActType);

    float acc[kCols];
    [[unroll]] for (uint j = 0; j < kCols; j++) acc[j] = 0.0;
    if (is_packed_weight(kWeightType)) {
        // A scale for each four chunks; k_begin is a multiple of theirs.
        const uint format = format_in(kWeightType);
        for (uint chunk0 = 0; chunk0 < n_chunks; chunk0 += 4) {
            const uint column = k_begin + chunk0 * 8, piece = column % brick_columns(format) / kPieceColumns;
            const uint64_t brick = brick_at(p.w, n, column, p.w_stride, format);
            const PieceScale scale = piece_scale(brick, n, piece, format);
            [[unroll]] for (uint i = 0; i < 4; i++) {
                const Eight a = piece_eight(p.w, brick, n, piece, i, scale, kWeightType);
                [[unroll]] for (uint j = 0; j < kCols; j++) acc[j] = dot8(a, load8(x + j * x_row_bytes, chunk0 + i, kActType), acc[j]);
            }
        }
        n_chunks = 0;
    }
    for (uint chunk = 0; chunk < n_chunks; chunk++) {
        Eight a = load8(w, chunk, kWeightType);
        [[unroll]] for (uint j = 0; j < kCols; j++) acc[j] = dot8(a, load8(x + j * x_row_bytes, chunk, kActType), acc[j]);
    }
    [[unroll]] for (uint j = 0; j < kCols; j++) {
        if (t0 + j >= n_rows) break;
        uint64_t at = uint64_t(split) * p.split_stride + uint64_t(t0 + j) * p.y_stride + n;
        FloatRef(p.y + at * 4).v = acc[j];
    }
}
