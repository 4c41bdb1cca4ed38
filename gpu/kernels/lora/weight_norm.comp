// weight_norm: gain[n] = gain[n] / || W[n] + scale (B A)[n] ||_2, f32 inside; 0 where the row is all zero
//   W  [n][stride] WEIGHT_TYPE or packed (weight_format.h)   A [rank][stride], B [n][rank rounded up to 8]  the
//       adapter's own type
// DoRA's magnitude over the norm of the adapted row: what the LoRA kernels and merge_weights call gain.
// grid (ceil(n / kDeltaRows)); one workgroup goes through all columns of its rows; moves W once.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/formats/weights.glsl"
#include "gpu/kernels/reduce.glsl"
#include "gpu/kernels/lora/merge_weights.params.h"
#include "gpu/kernels/lora/weight_delta.glsl"

layout(constant_id = 1) const uint kWeightType = 0;
layout(push_constant, scalar) uniform Push { WeightNormParams p; };

void main() {
    uint row0 = gl_WorkGroupID.x * kDeltaRows;
    if (gl_LocalInvocationIndex < kDeltaRows) row_factor[gl_LocalInvocationIndex] = p.scale;
    barrier();
    float squares[kDeltaRows];
    [[unroll]] for (uint j = 0; j < kDeltaRows; j++) squares[j] = 0.0;
    for (uint first = 0; first < p.stride / 8; first += gl_WorkGroupSize.x) {
        uint chunk = first + gl_LocalInvocationIndex;
        bool has_column = chunk < p.stride / 8;
        Eight acc[kDeltaRows];
        [[unroll]] for (uint j = 0; j < kDeltaRows; j++) {
            acc[j] = has_column ? load8_weights(p.from, p.first_row + min(row0 + j, p.n - 1), chunk, p.stride, kWeightType) : Eight(vec4(0.0), vec4(0.0));
        }
        add_product(acc, p.a, p.b, p.rank, p.type, row0, p.n, p.stride, chunk, has_column);
        [[unroll]] for (uint j = 0; j < kDeltaRows; j++) squares[j] = sum_squares4(acc[j].hi, sum_squares4(acc[j].lo, squares[j]));
    }
    for (uint j = 0; j < kDeltaRows; j++) {
        barrier();  // the sum before has been read
        float norm = sqrt(workgroup_sum(squares[j]));
        if (gl_LocalInvocationIndex != 0 || row0 + j >= p.n) continue;
        FloatRef gain = FloatRef(p.gain + uint64_t(row0 + j) * 4);
        gain.v = norm > 0.0 ? gain.v / norm : 0.0;
    }
}
