// matmul, many rows: y[s][t][n] = sum over the k range of split s of x[t][k] * w[n][k]
//   w  [n_padded][w_stride]  WEIGHT_TYPE, or a packed part (weight_format.h), of which no columns of y beyond n are
//       written
//   x  [T][x_stride]         ACT_TYPE, readable up to the next multiple of the tile
//   y  [S][T][y_stride]      f32
// A workgroup of 256 takes 64 columns of y and 16 * TILE_ROWS rows; both operands go through shared memory 32 k at a
// time, the next 32 are loaded meanwhile. A thread adds 4 columns x TILE_ROWS rows in order of k: no sum depends on the
// tile.
// grid (n_padded / 64, ceil(T / (16 * TILE_ROWS)), S)
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/formats/weights.glsl"
#include "gpu/kernels/products/matmul.params.h"

layout(constant_id = 1) const uint kWeightType = 0;
layout(constant_id = 2) const uint kActType = 0;
layout(constant_id = 3) const uint kTileRows = 4;  // rows of y per thread: 1, 2 or 4
layout(push_constant, scalar) uniform Push { MatmulParams p; };

const uint kTileK = 32;
const uint kTileN = 64;
const uint kTileT = 16 * kTileRows;
shared float w_tile[kTileK * kTileN];
shared float x_tile[kTileK * kTileT];

// Column `r` of line k; the shift by k / 8 spreads the stores of a transposed chunk over the banks.
uint w_at(uint k, uint r) { return k * kTileN + (r ^ ((k / 8) * 8)); }
uint x_at(uint k, uint r) { return k * kTileT + (kTileRows == 4 ? (r ^ ((k / 8) * 8)) : r); }

// Eight weights of the row of w that this thread loads, which begins at `w` where weights are plain.
Eight load_w(uint64_t w, uint row, uint first_chunk, uint chunk) {
    if (is_packed_weight(kWeightType)) return load8_packed(p.w, min(row, p.n - 1), first_chunk + chunk, p.w_stride, kWeightType);
    return load8(w, chunk, kWeightType);
}

void main() {
    uint n_rows = UintRef(p.n_rows).v;
    uint t0 = gl_WorkGroupID.y * kTileT;
    if (t0 >= n_rows) return;
    uint n0 = gl_WorkGroupID.x * kTileN;
    uint split = gl_WorkGroupID.z;
    uint k_begin = split * p.k_per_split;
    uint n_steps = (min(k_begin + p.k_per_split, p.w_stride) - k_begin) / kTileK;

    uint thread = gl_LocalInvocationIndex;
    uint row = thread / 4;      // of the tile to load
    uint chunk = thread % 4;    // of its 4 chunks of 8 k
    bool loads_x = row < kTileT;
    uint64_t w = p.w + (uint64_t(n0 + row) * p.w_stride + k_begin) * bytes_of(kWeightType);
    uint64_t x = p.x + (uint64_t(t0 + (loads_x ? row : 0)) * p.x_stride + k_begin) * bytes_of(kActType);
    uint column = thread % 16 * 4;
    uint line = thread / 16 * kTileRows;

    vec4 acc[kTileRows];
    [[unroll]] for (uint j = 0; j < kTileRows; j++) acc[j] = vec4(0.0);
    Eight next_w = load_w(w, n0 + row, k_begin / 8, chunk);
    Eight next_x = load8(x, chunk, kActType);
    for (uint s = 0; s < n_steps; s++) {
        [[unroll]] for (uint i = 0; i < 4; i++) {
            w_tile[w_at(chunk * 8 + i, row)] = next_w.lo[i];
            w_tile[w_at(chunk * 8 + 4 + i, row)] = next_w.hi[i];
        }
        if (loads_x) {
            [[unroll]] for (uint i = 0; i < 4; i++) {
                x_tile[x_at(chunk * 8 + i, row)] = next_x.lo[i];
                x_tile[x_at(chunk * 8 + 4 + i, row)] = next_x.hi[i];
            }
        }
        barrier();
        if (s + 1 < n_steps) {
            next_w = load_w(w, n0 + row, k_begin / 8, (s + 1) * 4 + chunk);
            next_x = load8(x, (s + 1) * 4 + chunk, kActType);
        }
        for (uint k4 = 0; k4 < kTileK; k4 += 4) {
            [[unroll]] for (uint i = 0; i < 4; i++) {
                uint k = k4 + i;
                uint at = w_at(k, column);
                vec4 a = vec4(w_tile[at], w_tile[at + 1], w_tile[at + 2], w_tile[at + 3]);
                [[unroll]] for (uint j = 0; j < kTileRows; j++) {
                    acc[j] = fma(a, vec4(x_tile[x_at(k, line) + j]), acc[j]);
                }
            }
        }
        barrier();
    }
    [[unroll]] for (uint j = 0; j < kTileRows; j++) {
        uint t = t0 + line + j;
        if (t >= n_rows) break;
        if (is_packed_weight(kWeightType) && n0 + column >= p.n) break;  // another part's
        uint64_t at = uint64_t(split) * p.split_stride + uint64_t(t) * p.y_stride + n0 + column;
        Vec4Ref(p.y + at * 4).v = acc[j];
    }
}
