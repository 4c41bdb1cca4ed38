// unpack_weights: to[i][k] = round(w[first_row + i][k]) for i < n, 0 for the rows behind
//   w   a packed part, WEIGHT (weight_format.h)
//   to  [n_rows][stride]  TYPE
// A thread takes 8 neighbouring columns of kThreadRows rows, 16 apart. grid (256 ceil(stride / 128) / workgroup,
// ceil(n_rows / 64)).
// Moves the part in once and 2 bytes a weight out.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/formats/weights.glsl"
#include "gpu/kernels/products/packed/unpack_weights.params.h"

layout(constant_id = 1) const uint kWeight = kWeightsQ8_0;
layout(constant_id = 2) const uint kType = 1;
layout(push_constant, scalar) uniform Push { UnpackWeightsParams p; };

const uint kThreadRows = 4;
const uint kChunks = 16;  // of a brick's row, or of half of it

void main() {
    uint i = gl_GlobalInvocationID.x;
    uint chunk = i / (kBrickRows * kChunks) * kChunks + i % kChunks;
    uint row0 = gl_WorkGroupID.y * (kThreadRows * kBrickRows) + i / kChunks % kBrickRows;
    if (chunk * 8 >= p.stride) return;
    Eight e[kThreadRows];
    [[unroll]] for (uint j = 0; j < kThreadRows; j++) {
        uint row = min(row0 + j * kBrickRows, p.n - 1);
        e[j] = load8_packed(p.from, p.first_row + row, chunk, p.stride, kWeight);
    }
    [[unroll]] for (uint j = 0; j < kThreadRows; j++) {
        uint row = row0 + j * kBrickRows;
        if (row >= p.n_rows) return;
        if (row >= p.n) e[j] = Eight(vec4(0.0), vec4(0.0));
        uint64_t at = p.to + uint64_t(row) * p.stride * bytes_of(kType);
        if (kType == 0) {
            Vec4Ref(at + uint64_t(chunk) * 32).v = e[j].lo;
            Vec4Ref(at + uint64_t(chunk) * 32 + 16).v = e[j].hi;
        } else {
            Uvec4Ref(at + uint64_t(chunk) * 16).v = pack8(e[j], kType);
        }
    }
}
