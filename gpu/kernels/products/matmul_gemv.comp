// y[split][t][n] = sum over the split's k of x[t][k] * w[n][k], meant for one row t, 16-bit w and x of one type, f32
// sums.
// Each subgroup streams one row of w: 16-byte loads, UNROLL of them in flight.
// (More rows are for the test at the start.) Grid: (rows of x, groups of w rows, splits). Bytes: the matrix once per
// row of x; x comes from the caches.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "gpu/kernels/products/matmul.params.h"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint TYPE = 1;    // 1 f16, 2 bf16
layout(constant_id = 2) const uint UNROLL = 2;  // 16-byte loads of a thread before their use

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Count { uint value; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Words { uvec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Floats { float data[]; };
layout(push_constant, scalar) uniform Push { MatmulParams params; };

vec2 unpack(uint word) {
    if (TYPE == 1) return unpackHalf2x16(word);
    return vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xffff0000u));
}

float add_products(uvec4 w, uvec4 x, float acc) {
    [[unroll]] for (uint part = 0; part < 4; ++part) {
        const vec2 wv = unpack(w[part]), xv = unpack(x[part]);
        acc = fma(wv.x, xv.x, acc);
        acc = fma(wv.y, xv.y, acc);
    }
    return acc;
}

void main() {
    const uint row = gl_WorkGroupID.x;
    if (row > 0 && row >= Count(params.n_rows).value) return;  // the first row is always there
    const uint n = gl_WorkGroupID.y * gl_NumSubgroups + gl_SubgroupID;
    if (n >= params.n) return;

    const uint stride = params.w_stride / 8;  // in units of 16 bytes, as all that follows
    const uint begin = gl_WorkGroupID.z * params.k_per_split / 8;
    const uint end = min(begin + params.k_per_split / 8, stride);
    Words w = Words(params.w);
    Words x = Words(params.x + uint64_t(row) * params.x_stride * 2);
    const uint w_row = n * stride;
    float acc = 0.0;

    const uint chunk = gl_SubgroupSize * UNROLL;
    const uint n_chunks = (end - begin) / chunk;
    uint at = begin + gl_SubgroupInvocationID;
    for (uint chunk_idx = 0; chunk_idx < n_chunks; ++chunk_idx) {
        uvec4 now[UNROLL];
        [[unroll]] for (uint u = 0; u < UNROLL; ++u) now[u] = w.data[w_row + at + u * gl_SubgroupSize];
        [[unroll]] for (uint u = 0; u < UNROLL; ++u) acc = add_products(now[u], x.data[at + u * gl_SubgroupSize], acc);
        at += chunk;
    }
    for (; at < end; at += gl_SubgroupSize) acc = add_products(w.data[w_row + at], x.data[at], acc);

    const float sum = subgroupAdd(acc);
    if (subgroupElect()) Floats(params.y + 4 * (uint64_t(gl_WorkGroupID.z) * params.split_stride + uint64_t(row) * params.y_stride)).data[n] = sum;
}
