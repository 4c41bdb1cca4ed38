// y[split][t][n] = sum over the split's k of x[t][k] * w[n][k] for few rows t, 16-bit w and x of one type, f32 sums.
// Each subgroup streams N_TILE rows of w once, for all COLS rows of x: 16-byte loads, UNROLL of them per row in flight.
// Grid: (row tiles, groups of w rows, splits). Bytes: the matrix once per row tile; x comes from the caches.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "gpu/kernels/matmul.params.h"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint TYPE = 1;      // 1 f16, 2 bf16
layout(constant_id = 2) const uint COLS = 1;      // rows of x at once
layout(constant_id = 3) const uint N_TILE = 2;    // rows of w per subgroup
layout(constant_id = 4) const uint UNROLL = 2;    // 16-byte loads per row of w and thread before their use
layout(constant_id = 5) const uint AHEAD = 0;       // 1: the next loads are issued before the current ones are used

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Count { uint value; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words { uvec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Floats { float data[]; };
layout(push_constant, scalar) uniform Push { MatmulParams params; };

const uint kLoads = N_TILE * UNROLL;

vec2 unpack(uint word) {
    if (TYPE == 1) return unpackHalf2x16(word);
    return vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xffff0000u));
}

float acc[COLS * N_TILE];
uint w_row[N_TILE];  // in units of 16 bytes
uvec4 now[kLoads];

// acc += piece u of every row; at: where it lies within a row, in units of 16 bytes.
void use(uint u, uint at, Words x, uint x_stride) {
    [[unroll]] for (uint c = 0; c < COLS; ++c) {
        const uvec4 xw = x.data[c * x_stride + at];
        [[unroll]] for (uint part = 0; part < 4; ++part) {
            const vec2 xv = unpack(xw[part]);
            [[unroll]] for (uint r = 0; r < N_TILE; ++r) {
                const vec2 wv = unpack(now[r * UNROLL + u][part]);
                acc[c * N_TILE + r] = fma(wv.x, xv.x, acc[c * N_TILE + r]);
                acc[c * N_TILE + r] = fma(wv.y, xv.y, acc[c * N_TILE + r]);
            }
        }
    }
}

void main() {
    const uint row0 = gl_WorkGroupID.x * COLS;
    if (row0 > 0 && row0 >= Count(params.n_rows).value) return;  // the first rows are always there
    const uint n0 = (gl_WorkGroupID.y * gl_NumSubgroups + gl_SubgroupID) * N_TILE;
    if (n0 >= params.n) return;

    const uint stride = params.w_stride / 8;
    const uint begin = gl_WorkGroupID.z * params.k_per_split / 8;
    const uint end = min(begin + params.k_per_split / 8, stride);
    Words w = Words(params.w);
    Words x = Words(params.x + uint64_t(row0) * params.x_stride * 2);
    const uint x_stride = params.x_stride / 8;
    [[unroll]] for (uint r = 0; r < N_TILE; ++r) w_row[r] = (n0 + r) * stride;
    [[unroll]] for (uint i = 0; i < COLS * N_TILE; ++i) acc[i] = 0.0;

    const uint chunk = gl_SubgroupSize * UNROLL;
    const uint n_chunks = (end - begin) / chunk;
    uint at = begin + gl_SubgroupInvocationID;
    if (AHEAD == 1) {
        if (n_chunks > 0) {
            [[unroll]] for (uint i = 0; i < kLoads; ++i)
                now[i] = w.data[w_row[i / UNROLL] + at + i % UNROLL * gl_SubgroupSize];
        }
        for (uint chunk_idx = 0; chunk_idx < n_chunks; ++chunk_idx) {
            uvec4 next[kLoads];
            if (chunk_idx + 1 < n_chunks) {
                [[unroll]] for (uint i = 0; i < kLoads; ++i)
                    next[i] = w.data[w_row[i / UNROLL] + at + chunk + i % UNROLL * gl_SubgroupSize];
            }
            [[unroll]] for (uint u = 0; u < UNROLL; ++u) use(u, at + u * gl_SubgroupSize, x, x_stride);
            [[unroll]] for (uint i = 0; i < kLoads; ++i) now[i] = next[i];
            at += chunk;
        }
    } else {
        for (uint chunk_idx = 0; chunk_idx < n_chunks; ++chunk_idx) {
            [[unroll]] for (uint i = 0; i < kLoads; ++i)
                now[i] = w.data[w_row[i / UNROLL] + at + i % UNROLL * gl_SubgroupSize];
            [[unroll]] for (uint u = 0; u < UNROLL; ++u) use(u, at + u * gl_SubgroupSize, x, x_stride);
            at += chunk;
        }
    }
    for (; at < end; at += gl_SubgroupSize) {
        [[unroll]] for (uint r = 0; r < N_TILE; ++r) now[r * UNROLL] = w.data[w_row[r] + at];
        use(0, at, x, x_stride);
    }

    Floats y = Floats(params.y + 4 * (uint64_t(gl_WorkGroupID.z) * params.split_stride + uint64_t(row0) * params.y_stride));
    [[unroll]] for (uint c = 0; c < COLS; ++c) {
        [[unroll]] for (uint r = 0; r < N_TILE; ++r) {
            const float sum = subgroupAdd(acc[c * N_TILE + r]);
            if (subgroupElect()) y.data[c * params.y_stride + n0 + r] = sum;
        }
    }
}
