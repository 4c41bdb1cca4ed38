// train_embed, the tables' rows of tokens:
//   forward   x[t] = table[token[t]], padding zeroed;  grid (rows)
//   backward  table[token][h] += sum over the rows in which the token stands of x[row][h], in the rows' order;  grid
//       (distinct tokens, ceil(hidden / workgroup))
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/formats/weights.glsl"
#include "gpu/kernels/train/train_rows.params.h"

layout(constant_id = 1) const uint kBackward = 0;  // then the table is f32
// The table's type; or its packed format, with the type that its numbers are rounded to (weight_format.h).
layout(constant_id = 2) const uint kTableType = 0;
layout(constant_id = 3) const uint kTransposed = 0;  // 1: the table is [hidden][vocab]
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer TokenRowsRef { TrainTokenRows v; };
layout(push_constant, scalar) uniform Push { TrainEmbedParams p; };

void forward() {
    uint t = gl_WorkGroupID.x;
    uint token = UintRef(p.tokens + uint64_t(t) * 4).v;
    if (is_packed_weight(kTableType)) {
        // Columns behind the last are zeros in the bricks.
        for (uint chunk = gl_LocalInvocationIndex; chunk < p.x_stride / 8; chunk += gl_WorkGroupSize.x) {
            Eight e = load8_packed(p.table, token, chunk, p.table_stride, kTableType);
            uint64_t at = p.x + (uint64_t(t) * p.x_stride + chunk * 8) * 4;
            Vec4Ref(at).v = e.lo;
            Vec4Ref(at + 16).v = e.hi;
        }
        return;
    }
    uint64_t row = p.table + (kTransposed != 0 ? 0 : uint64_t(token) * p.table_stride * bytes_of(kTableType));
    for (uint h = gl_LocalInvocationIndex; h < p.x_stride; h += gl_WorkGroupSize.x) {
        FloatRef(p.x + (uint64_t(t) * p.x_stride + h) * 4).v = h >= p.hidden ? 0.0 : kTransposed != 0 ? load1(row + uint64_t(h) * p.table_stride * bytes_of(kTableType), token, kTableType) : load1(row, h, kTableType);
    }
}

void backward() {
    TrainTokenRows token = TokenRowsRef(p.tokens + uint64_t(gl_WorkGroupID.x) * 12).v;
    uint h = gl_WorkGroupID.y * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
    if (h >= p.hidden) return;
    uint64_t at = kTransposed != 0 ? uint64_t(h) * p.table_stride + token.token : uint64_t(token.token) * p.table_stride + h;
    FloatRef to = FloatRef(p.table + at * 4);
    float sum = to.v;
    for (uint i = 0; i < token.n; i++) {
        uint row = UintRef(p.rows + uint64_t(token.begin + i) * 4).v;
        sum += FloatRef(p.x + (uint64_t(row) * p.x_stride + h) * 4).v;
    }
    to.v = sum;
}

void main() {
    if (kBackward == 0) forward();
    else backward();
}
