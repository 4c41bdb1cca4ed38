// merge_weights: to[n] = round(c W[n] + sum_i factor_i gain_i[n] scale_i (B_i A_i)[n]),  c = 1 + sum_i factor_i
// (gain_i[n] - 1)
//   W, to  [n_rows][stride]  WEIGHT_TYPE; f32 inside, one rounding to the nearest; W is only read, and may be packed
//       (weight_format.h)
//   A_i    [rank][stride], B_i [n_changed][rank rounded up to 8]  each adapter's own type
// grid (ceil(n_rows / kDeltaRows), ceil(stride / 8 / workgroup)): workgroups that run together share columns of A.
// Moves W once in and once out: 26 GB for 6.5 billion 16-bit weights, 5.7 ms at 4.6 TB/s. At rank 16 the products are
// 104 G fma,
// 3.6 ms at 29 T fma/s, and run beside the loads.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/formats/weights.glsl"
#include "gpu/kernels/lora/merge_weights.params.h"
#include "gpu/kernels/lora/weight_delta.glsl"

layout(constant_id = 1) const uint kWeightType = 0;
layout(constant_id = 2) const uint kFrom = 0;  // of W: kWeightType, or a packed format
layout(push_constant, scalar) uniform Push { MergeWeightsParams p; };

layout(buffer_reference, scalar, buffer_reference_align = 8) buffer PartRef { MergePart v; };
PartRef part_at(uint i) { return PartRef(p.parts + uint64_t(i) * 48); }

shared float weight_factor[kDeltaRows];

uint rounded_pair(vec2 pair) {
    return kWeightType == 1 ? f16_bits(pair.x) | (f16_bits(pair.y) << 16) : pack_pair(pair, kWeightType);
}

void store8(uint64_t row, uint chunk, Eight value) {
    if (kWeightType == 0) {
        Vec4Ref(row + uint64_t(chunk) * 32).v = value.lo;
        Vec4Ref(row + uint64_t(chunk) * 32 + 16).v = value.hi;
    } else {
        Uvec4Ref(row + uint64_t(chunk) * 16).v = uvec4(rounded_pair(value.lo.xy), rounded_pair(value.lo.zw),
                                                       rounded_pair(value.hi.xy), rounded_pair(value.hi.zw));
    }
}

void main() {
    uint row0 = gl_WorkGroupID.x * kDeltaRows;
    uint chunk = gl_WorkGroupID.y * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
    bool has_column = chunk < p.stride / 8;
    uint64_t row_bytes = uint64_t(p.stride * bytes_of(kWeightType));

    // The weights as they lie in memory, loaded while B A is computed; f32 takes two of them.
    uvec4 w[kDeltaRows];
    uvec4 w_hi[kDeltaRows];
    if (has_column && !is_packed_weight(kFrom)) {
        [[unroll]] for (uint j = 0; j < kDeltaRows; j++) {
            uint64_t at = p.from + min(row0 + j, p.n_rows - 1) * row_bytes + uint64_t(chunk) * (kWeightType == 0 ? 32 : 16);
            w[j] = Uvec4Ref(at).v;
            if (kWeightType == 0) w_hi[j] = Uvec4Ref(at + 16).v;
        }
    }
    uint own = gl_LocalInvocationIndex;  // threads below kDeltaRows keep the factors of one row each
    bool keeps = own < kDeltaRows && row0 + own < p.n_changed;
    float c = 1.0;
    Eight acc[kDeltaRows];
    [[unroll]] for (uint j = 0; j < kDeltaRows; j++) acc[j] = Eight(vec4(0.0), vec4(0.0));
    for (uint i = 0; i < p.n_parts; i++) {
        MergePart part = part_at(i).v;
        barrier();  // the factors before have been used
        if (own < kDeltaRows) {
            float gain = keeps && part.gain != 0 ? FloatRef(part.gain + (row0 + own) * 4).v : 1.0;
            c = fma(part.factor, gain - 1.0, c);
            row_factor[own] = part.factor * gain * part.scale;
        }
        barrier();
        add_product(acc, part.a, part.b, part.rank, part.type, row0, p.n_changed, p.stride, chunk, has_column);
    }
    if (own < kDeltaRows) weight_factor[own] = c;
    barrier();
    if (!has_column) return;
    [[unroll]] for (uint j = 0; j < kDeltaRows; j++) {
        if (row0 + j >= p.n_rows) break;
        vec4 factor = vec4(weight_factor[j]);
        Eight old = Eight(vec4(0.0), vec4(0.0));
        if (is_packed_weight(kFrom)) {
            if (row0 + j < p.n_changed) old = load8_packed(p.from, p.first_row + row0 + j, chunk, p.stride, kFrom);
        } else {
            old = kWeightType == 0 ? Eight(uintBitsToFloat(w[j]), uintBitsToFloat(w_hi[j])) : unpack8(w[j], kWeightType);
        }
        store8(p.to + (row0 + j) * row_bytes, chunk, Eight(fma(old.lo, factor, acc[j].lo), fma(old.hi, factor, acc[j].hi)));
    }
}
